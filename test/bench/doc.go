// Command bench measures the Bare Metal Database beside what others make of the same server, and
// prints one table of goals, our figures, the reference's, and their ratio. `make bench-bmdb` runs
// it. README.md tells what each section measures and how to read it.
//
// It is a module of its own, so that River, which it measures against, is no dependency of the
// product.
//
// # Method
//
// Everything runs against one private PostgreSQL (package pgserver) that really syncs to the disk,
// with pg_stat_statements loaded. What is compared takes turns in one run (takeTurns): ours,
// reference, ours, reference …; before each round the tables are vacuumed and a checkpoint is
// taken, so that none pays for another. The table has medians over the rounds, and ratios of rounds
// that followed each other.
//
// Besides wall time, which depends on what else the machine does, there are figures that do not:
// processor time of the server's backends, of its background processes and of the client (meter),
// versions of rows and entries of indexes (writes), bytes of WAL, statements and buffers
// (pg_stat_statements), round trips (proxy).
//
// What is measured is reached through the exported API of package bmdb, and what it writes is
// counted by the server. Only fill.go knows tables.
//
// # Promises
//
// It exits with 1 when something failed, never because a goal was missed: the table says which. It
// leaves nothing behind.
package main
