// Package bmdb is the Bare Metal Database: the only state of the control plane. It keeps facts
// about machines, decides by package lifecycle what is due when, and hands work out so that no two
// parties ever act on the same thing. The rules and invariants that it cites by number are told in
// docs/invariants.md.
//
// Packages sqlite and postgres below it are the engines; package statement is the SQL that both
// run; packages agenda and batch are what needs no SQL; package bmdbtest is the suite that every
// engine passes. What people may ask to be done to a machine is said by package verb; bmdb does it.
//
// # What is authoritative
//
//   - Facts: one table each, one writer each. There is no status that somebody sets.
//   - ended_at of a session: only a committed end is one. A deadline that has passed is a reason to
//     end a session, not an end.
//   - The lane of a subject, which stands in the subject's own row: who holds it (session, epoch),
//     for what, since when and why. Every write of it names the session, the epoch and the revision
//     that it replaces. An epoch never comes twice, not even when its machine goes and comes back.
//   - The policy of the highest number.
//
// Everything else is derived and may be thrown away. An entry of the agenda is a hint when to look,
// never later than what lifecycle says. The subject's row keeps the instants of its entries; an
// entry that disagrees with it is stale, and whoever meets it removes it. The stored state is what
// lifecycle said last. One function (derive; deriveProvider for providers) makes both, for one
// subject at a time, in every transaction that writes facts, work or backoff of that subject.
//
// # The states of a session
//
//	            extend, by the holder, also past the deadline
//	              ┌──────┐
//	              │      ▼
//	start ──► ┌────────────┐  deadline passed, by anybody   ┌─────────────────┐
//	          │    live    │ ─────────────────────────────► │ ended, for good │
//	          └────────────┘  close, by the holder          └─────────────────┘
//	                          opened by another process          │
//	                          (engines for a single one)         ▼
//	                                                  its lanes are void; whoever
//	                                                  comes across them frees them
//
// Ending is one small transaction, for which commits of the holder wait, and it for them (rule 4).
// An extension waits for neither.
//
// A holder does not ask whether its session lives, it knows until when it must: package trust.
//
// # The states of a lane
//
//	       claim: epoch+1, since, why
//	┌──────┐ ──────────────────────────────────────────► ┌──────┐
//	│ free │                                             │ held │ ◄─┐ Note: a fenced write,
//	└──────┘ ◄────────────────────────────────────────── └──────┘ ──┘ the lease stays
//	       Finish, Fail, Cancel: by the holder
//	       its session has ended: by anybody, "expired"
//	       people (quarantine, a new install request), or the machine goes:
//	       epoch+1, "revoked"
//
// Each way back writes the one row of history that the work has: when and why it started, how it
// ended (I4). Only a probe that finds what the one before found has none, and one that cannot be
// made for the same cause, or whose turn did not come. While work runs, the lane is its durable
// start, and what is shown of it comes from there.
//
// # The ways through the code
//
// A claim (Session.Claim) is rules 2 and 4. The entry of claimed work stays, due at the holder's
// deadline, so a dead holder's work surfaces by itself. An end and a note (commit) are rule 3. Ends
// that come while another one is being committed are one batch.
//
// # What happens when
//
//   - The holder dies: its session is not extended, ends, its lanes are void. Nothing needs to be
//     cleaned up for correctness.
//   - The holder is paused past its window and wakes: its contexts are cancelled; what it had begun
//     may still reach the outside (rule 7); its commits return ErrLeaseLost and change nothing.
//   - The reply to a commit is lost: repeating the same outcome by the same (session, epoch)
//     returns nil. After a Note the work fails, and whoever does it again looks at what was
//     written. The reply to a claim is lost: the session remembers its candidates, and the next
//     extension hands back what it turns out to hold.
//   - A commit is lost by the database (asynchronous failover) and somebody else got the epoch: the
//     session in the lane is another, and the commit is refused.
//   - The reply to HandOutInstall is lost, here or on its way to the agent: the agent does not know
//     the attempt, it is closed as never started, and another number is handed out.
//   - Any statement fails: the transaction is undone as a whole.
//   - The process dies between ending a session and freeing its lanes: CollectSessions of any
//     process frees them, or the next claim, or the next fact.
//   - What is stored of a machine cannot be read: that machine alone is put off, shown as
//     unreadable and found by Check.
//   - A wake-up is lost: the claimer finds the work by its own timer, or by the next full scan.
//   - The clock of a host is set: nothing. All stored instants are the database's.
//   - The clock of a database server is set forward: sessions end early. It is set back: what was
//     written before counts until it is there again, but for passes and updates of providers; who
//     opens the database is told.
//   - Nobody listened to agents: silence counts only from the listener's return.
//   - The listener promises shorter intervals, a restore is accepted, the policy changes: the
//     policy gets a new number, and RecomputeAgenda judges what was judged under a lower one.
//   - A release with other rules takes over, or works beside the one before: RecomputeAgenda of the
//     newer one judges what was judged by older rules.
//   - The database is put back from a backup, copied, or promoted from a standby: lifecycle is
//     told, and whatever touches a machine waits for `ironherd db accept-restore`.
//   - The machine's row goes (a rejected intent): its token keeps the epoch. A device that surfaces
//     with the token comes back under the same UUID.
//   - A provider leaves the configuration: no session names it, and what is due there is told as
//     that. Its row goes by ForgetProvider; its lanes stay, and keep their epochs.
//
// # What grows with the fleet
//
// A claim, a commit, a fact, a heartbeat, a page of a list and an explanation read and write by
// key; an idle poll is one statement and one descent of an index. What is due and claimed by nobody
// is judged again when it has become due, and not for as long as it is. Who holds what has no
// index, because every claim and every end would pay for it: listing the leases of a session reads
// all machines, and so does freeing those of a session that died, once. States are counted by the
// rewrite that writes them, as changes that the janitor sums up. Check goes over the fleet in
// pages, and counts lanes, machines and states whole at the end of each round.
package bmdb
