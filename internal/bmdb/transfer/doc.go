// Package transfer copies a fleet from one database to another, whatever their engines are.
//
// # Promises
//
//   - All or nothing: the target is written by one transaction, and what was written is read back
//     and compared, row count and digest of every table, before it is committed. A copy that was
//     interrupted leaves an empty target and can be made again.
//   - Nothing is lost: every table is copied, but for those that say which database this is and
//     those that are derived, which are derived anew. A table that this package does not know of
//     fails the copy. Epochs, generations, tokens and history go on where they were.
//   - The source is not in use: an embedded database is locked by its engine; on an engine for many
//     processes no session may be alive. The sessions that are left are ended first, so that nobody
//     holds anything in the copy. A session or an agent API that begins meanwhile fails the copy.
//   - The target is empty, and stays so if anything fails.
//
// # Two databases, one fleet
//
// From a copy on, two databases know the same machines, and a control plane on each would reinstall
// what the other one looks after. Which of them counts is for a person to say (rule 11 of
// docs/invariants.md): both are marked as copies before either can be opened again, and whatever
// destroys or reboots waits for `ironherd db accept-restore` on the one that counts. The target's
// mark is in the transaction that fills it. The source has its own before anything is copied, and
// loses it when the copy fails. Should the process die in between, or not learn whether the target
// has everything, the source keeps it.
package transfer
