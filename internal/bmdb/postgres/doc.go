// Package postgres is the engine of the BMDB for many processes on many hosts: PostgreSQL 15 or
// later.
//
// # Promises
//
//   - A transaction is what bmdb.Engine says, at READ COMMITTED, pinned in the statement that
//     begins it, whatever the server's default is; with Options.Serializable at SERIALIZABLE.
//     Serialization failures (40001) and deadlocks (40P01) are retried under a bound; a lock that
//     is not to be had in time is of kind Temporary. Nothing is retried of which it is not known
//     that it was undone.
//   - A view is one snapshot (REPEATABLE READ, READ ONLY); a function that runs no statement costs
//     none.
//   - Extensions of sessions have connections of their own: no commit that waits, and no pool that
//     is exhausted, delays them.
//   - Nobody hides anything for longer than a lease. Waiting for a lock ends after two fifths of
//     the lease, a transaction whose client went silent after three fifths: the server then ends it
//     and gives its locks back.
//   - What was acknowledged is on the server's disk: synchronous_commit off is turned on.
//   - Text is UTF-8 without NUL here; anything else that the outside said is stored with U+FFFD in
//     its place.
//
// # Time
//
// Database time is the server's (rule 6). The engine asks for it in a round trip, at most ten
// seconds ago, and counts on from there by clocks that nobody can set. The truth lies between two
// readings: the earlier one, which assumes that the server answered in the last moment, judges
// others; the later one, which assumes that it answered at once, is what a session is started and
// extended by, and is always fresh. So nobody's session ends before its holder's trust does. A
// server clock that is set forward by more than a margin ends sessions early (let it be slewed);
// one that is set at all is logged.
//
// # Locks
//
//	own session   FOR KEY SHARE       by commits: conflicts with its end only
//	              FOR NO KEY UPDATE   by an extension, which updates no key: conflicts with neither
//	              FOR UPDATE          by its end
//	providers     FOR NO KEY UPDATE   in the order of their names; claims skip those that are taken
//	machines      FOR NO KEY UPDATE   in the order of their IDs; claims skip those that are taken
//	limits        FOR UPDATE          in the order of providers, after all others; waited for
//
// FOR NO KEY UPDATE excludes itself, which is all that the protocol wants of it. FOR UPDATE would
// exclude FOR KEY SHARE besides, which nobody takes on these rows, and cost every claim the same.
//
// # Wake-ups
//
// What became due sooner is told to the other processes by NOTIFY (notifier), never within a
// transaction of work: the server commits transactions with a NOTIFY one after the other. It is a
// hint: lost ones are made up for by polls, and nothing is ever correct because of one.
//
// # Which database this is
//
// The server's system identifier, the database's OID and the server's timeline are kept in the
// database, with the OID of the table that has them, and compared at open and on each new
// connection (rule 11). A dump put into another database or back in place, a copy under another
// server, a recovery to an earlier point and a promoted standby are recognised: whatever destroys
// or reboots waits for `ironherd db accept-restore`. A file system snapshot put back under the same
// server is not. A server that does not tell (one that is only compatible with PostgreSQL) is
// trusted.
//
// # What happens when
//
//   - A statement's context ends: the server is told to cancel it, and the transaction is undone.
//   - The connection breaks before COMMIT was sent: nothing was committed. While it is under way:
//     nobody knows; the caller is told so by an error of kind Temporary and repeats, which the
//     layer above makes harmless.
//   - The server's wait for a synchronous standby is cancelled, by somebody or after ten seconds by
//     us: it has committed, and a failover may lose that. The caller is told so in the same way.
//   - The server restarts: transactions under way fail as above, later ones connect anew, within
//     the context of their caller.
//   - The pool is exhausted: callers wait for their turn, within their context.
package postgres
