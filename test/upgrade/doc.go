// Command upgrade upgrades fleets: it runs the previous version and today's side by side on one
// PostgreSQL while the schema is migrated under them and processes are replaced one by one, kills
// some of each, and judges what is left. `make torture-upgrade` runs it.
//
// The previous version is a commit that the file PREVIOUS names. Its programs are built from its
// own tree, which is unpacked into a temporary directory; a clone without that commit is told so,
// and fails.
//
// Workers (folder worker) first, on a database of their own each round: reduced to what a process
// does to the database, but all of that (claims, facts, every end of work, agents that speak and
// fall silent, people), as fast as they can, and with a witness outside of the database: one log
// that all append to, whose order is that of what happened. Then the real programs: `ironherd
// serve` of both versions behind one address, bringing up a simulated fleet, each machine of which
// must be installed exactly once.
//
// In both: the previous version makes the database and works; the new one migrates it under them;
// the previous one is alone on the new schema for a while; the new one joins; one of each is killed
// by turns until the previous one is gone; started once more it refuses, in one sentence; the new
// one is alone. A run fails when
//
//   - a process ended by itself, or met an error that is not one that passes (those are counted by
//     kind, and few);
//   - an epoch belonged to two, or an effect came after the next holder's claim, but for holders
//     whom people have revoked;
//   - history is not one start and one end after the other, of growing epochs, or lacks what was
//     acknowledged;
//   - nobody of the one version took over what a killed process of the other had held (then nothing
//     was tested);
//   - a machine was not claimed any more in the end, or `ironherd db check` of the new version
//     finds anything: lanes, history, counts and places under a concurrency limit that contradict
//     each other, rows of the agenda that are missing or later than lifecycle says.
package main
