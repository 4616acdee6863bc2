// Command bench measures the Bare Metal Database beside what others make of the same server, and
// prints one table of goals, our figures, the reference's, and their ratio. `make bench-bmdb` runs
// it; docs/performance.md tells how to read it.
//
// It is a module of its own, so that River, which it measures against, is no dependency of the
// product.
//
// # Method
//
// Everything runs against one private PostgreSQL (package pgserver) that really syncs to the disk,
// with pg_stat_statements loaded. What is compared is interleaved in one run: ours, reference,
// ours, reference …; before each round the tables are vacuumed and a checkpoint is taken, so that
// none pays for another. The table has medians over the rounds, and ratios of rounds that followed
// each other.
//
// Besides wall time, which depends on what else the machine does, there are figures that do not:
// statements and buffers per operation (pg_stat_statements), round trips (a proxy that counts how
// often the server says that it is ready), bytes of WAL, and processor time of the database (user
// and system time of the server's processes, ended ones included; background writers and autovacuum
// count).
//
// # Promises
//
// It exits with 1 when something failed, never because a goal was missed: the table says which. It
// leaves nothing behind.
package main
