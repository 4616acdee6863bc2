// Package sqlite is the embedded engine of the BMDB: one file, one process.
//
//   - One process: an operating-system lock on <file>.lock, which holds the number of the process.
//     It is beside the file itself, also where <path> is a link to it. Opening the database
//     therefore means that every session that is left in it is dead.
//   - One writer: a goroutine runs whatever waits in one transaction, each caller in a savepoint of
//     its own, and commits once for all (group commit). An error or a panic of one caller undoes
//     that one alone; a failed commit fails all, and nothing of them is stored. Journal in WAL
//     mode, synchronous FULL: what was acknowledged survives a power cut.
//   - Readers have connections and snapshots of their own and wait for nobody.
//   - Database time is the time of day at open, advanced by clocks that nobody can set, never
//     behind an instant already stored. In a bubble of package testing/synctest it is the bubble's
//     time.
//   - <path>.identity tells a restored or copied database from the one that was
//     here last (rule 11).
package sqlite
