// Command upgrade upgrades fleets while they are in use. It runs the previous version and this one
// side by side on one PostgreSQL, migrates the schema under them, replaces the processes one by
// one, kills some of both versions, and checks the result. `make torture-upgrade` runs it.
//
// The previous version is a commit that the file PREVIOUS names. Its migrations must be the first
// of today's, else nothing leads from the one schema to the other, and the command says so. Its
// programs are built from its own tree, which is unpacked into a temporary directory. In a clone
// without that commit the command fails and says so.
//
// First it runs workers (folder worker), on a new database each round. A worker does everything
// that a process does to the database, and nothing else, as fast as it can: claims, facts, every
// end of work, agents that speak and fall silent, people. All workers append to one log outside of
// the database, whose order is that of what happened. Then it runs the real programs: `ironherd
// serve` of both versions behind one address. They bring up a simulated fleet, and must install
// each machine exactly once.
//
// The steps of both:
//
//  1. The previous version creates the database and works.
//  2. The new version migrates the schema. The previous one is alone on it for a while.
//  3. Processes of the new version join. Processes of both versions are killed in turn, until the
//     previous version is gone.
//  4. The previous version is started once more, and must refuse in one sentence. Where both have
//     the same schema, step 2 changes nothing, and here the previous version must work.
//  5. The new version works alone.
//
// A run fails when
//
//   - a process ended by itself, or met an error other than the transient ones, which are counted
//     by kind and must be few (by its own rules, the previous version may call entries of the
//     agenda wrong that the new one has made);
//   - two holders had the same epoch, or an effect came after the next holder's claim, unless
//     people had revoked the lease;
//   - the history of a machine is not a sequence of one row for each lease, with its start and its
//     end, that leaves out no epoch but those that quarantines used up, or lacks what was
//     acknowledged;
//   - no process of one version took over from a killed process of the other, because then nothing
//     was tested;
//   - a machine was not claimed any more in the end;
//   - `ironherd db check` of the new version finds anything: lanes, history, and counts that
//     contradict each other, entries of the agenda that are missing or later than lifecycle says.
package main
