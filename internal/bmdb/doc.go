// Package bmdb is the Bare Metal Database: the only state of the control plane. It keeps facts
// about machines, decides by package lifecycle what is due when, and hands work out so that no two
// parties ever act on the same thing.
//
// Packages sqlite and postgres below it are the engines; package statement is the SQL that both run
// (generated, see sqlc.yaml, but for statements on many rows); package bmdbtest is the suite that
// every engine passes.
//
// # What is authoritative
//
//   - Facts: one table each, one writer each. There is no status that somebody sets.
//   - ended_at of a session: only a committed end is one. A deadline that has passed is a reason to
//     end a session, not an end.
//   - (epoch, session) of a lane: who holds it. Every commit names both. An epoch never comes
//     twice, not even when its machine goes and comes back: the row of a free lane stays.
//   - The policy of the highest number.
//
// Everything else is derived and may be thrown away: an agenda row is a hint when to look (never
// later than what lifecycle says, possibly earlier), the stored state is what lifecycle said last,
// floors and wake-ups only save time. One function (rewrite) derives both, for one machine at a
// time, in every transaction that writes facts, work or backoff of that machine.
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
//	                                                     its lanes are void; whoever comes
//	                                                     across them writes "expired"
//
// Ending is one small transaction: lock the session's row exclusively, then, in a second statement,
// judge the deadline by the database's clock. Commits of the holder keep the row FOR KEY SHARE, so
// an end waits for them and they for it; an extension changes no key and waits for neither.
//
// # The trust window
//
// A holder does not ask whether its session lives, it knows until when it must:
//
//	trusted until = start of the last successful extension + interval − margin
//
// The start is taken before the statement is sent, the deadline in the database after it arrived,
// so the window closes before the session can be ended, by at least the margin. Elapsed time is the
// larger of what the monotonic and the boot-time clock say (the latter counts while the machine is
// suspended); neither can be set. When the window closes, every context from Session.Guard and
// Work.Guard is cancelled with cause fleet.ErrLeaseLost, and the session is lost for this process
// even if the database still thinks well of it. One extension that fails is repeated; it is not the
// end. Package trust keeps the window and the clock.
//
// # The states of a lane
//
//	       claim: epoch+1, history "started"
//	┌──────┐ ───────────────────────────────────────────► ┌──────┐
//	│ free │                                              │ held │ ◄─┐ Note: fenced write,
//	└──────┘ ◄─────────────────────────────────────────── └──────┘ ──┘ the lease stays
//	       Finish, Fail, Cancel: by the holder, history "finished", "failed", "cancelled"
//	       its session has ended: by anybody, history "expired"
//	       people: quarantine, a new install request, a policy that does not want it: epoch+1, history "revoked"
//
// Every "started" has exactly one of the others with the same epoch (a unique index on engines that
// can have one; Check on all). The holder of a revoked lane learns of it with its next extension,
// which cancels the contexts of that work alone; a commit in between is refused.
//
// # One lock order
//
// The own session, providers by name, machines by ID: taken in that order, once, before anything is
// read that is relied on, by locks.take and nowhere else (a claim skips machines that somebody
// has); a claim of a process with a storm limit locks slots after all that. Lane, agenda, backoff,
// facts and state belong to whoever has the row of their subject and have no locks of their own,
// but for agent_last_seen, which heartbeats write in the order of machines and under which nothing
// else is ever locked. READ COMMITTED suffices: what must be current is read by a later statement
// than the one that took its lock. No transaction spans the fleet.
//
// # A claim
//
//  1. Read candidates from the head of the agenda, unlocked, from the remembered floor on (once a
//     minute from the bottom).
//  2. In one transaction: own session FOR KEY SHARE and not ended; machines locked, those that are
//     locked skipped; facts, backoff and lane read; lifecycle asked. Due and free: the lane is
//     taken. Anything else: the row is moved to where lifecycle says. Where there is a storm limit,
//     only so many start as slots are free; what found none stays due.
//  3. A holder past its deadline in the way: end its session by a transaction of its own, then look
//     again.
//  4. Until the free slots are filled or nothing is left.
//
// The row of claimed work stays, due at the holder's deadline: a dead holder's work surfaces by
// itself.
//
// Claims of one process (an operating system's) with the same scope take turns: they are after the
// same rows, and need not meet at the database to find that out.
//
// # An end
//
// A holder remembers what it read at its claim, or left with its last Note. The lane has a
// revision, which grows with every write about the machine by anybody while the lane is held
// (facts, backoffs, agenda, state; not when the agent was last heard). An end locks session and
// machine and frees the lane by a statement that names epoch and revision: where that matches, what
// is remembered is still the truth, and the agenda and the state after the end are computed from
// it. Where it does not, or nothing is remembered, or there is an agent to be heard, the machine is
// read as at a claim. So the revision saves time, and what it protects is that no end decides upon
// facts that have been replaced. Ends that come while another is being committed ride together.
//
// # Storm slots
//
// The policy may limit how much of a process (recovery) goes on at one provider at once, whatever
// number of processes claims. Each such work has a slot: a row that names its lane and epoch, and
// is taken exactly while the lane is held under that epoch. Nobody frees slots; what frees or
// revokes the lane does, so none can leak. The dead keep theirs until their lanes are freed, which
// the claim that misses a slot does, or the janitor. Slots are locked before it is read which are
// taken and what the limit is, and the claim that took one commits both together. A lower limit
// lets run what runs, and counts it; a limit where there was none gives slots to what runs. (What a
// claim starts that had read the policy without a limit the moment before has none.) A provider
// without a free slot is passed by: its due rows are neither locked nor paged through, and do not
// make a claimer come again before a slot is freed, which wakes it as anything else that becomes
// due, or can be by the death of a holder.
//
// # What happens when
//
//   - The holder dies: its session is not extended, ends, its lanes are void. Nothing needs to be
//     cleaned up for correctness.
//   - The holder is paused past its window and wakes: its contexts are cancelled; what it had begun
//     may still reach the outside (rule 7 of docs/invariants.md); its commits return
//     ErrLeaseLost and change nothing.
//   - The reply to a commit is lost: repeating the same outcome by the same (session, epoch)
//     returns nil, the same Note is written once. The reply to a claim is lost: the next extension
//     finds lanes that nobody here knows and hands them back.
//   - The reply to HandOutInstall is lost, here or on its way to the agent: the agent does not know
//     the attempt, it is closed as never started, and another number is handed out.
//   - Any statement fails: the transaction is undone as a whole, its group's others are not.
//   - The process dies between ending a session and freeing its lanes: CollectSessions of any
//     process frees them, or the next claim, or the next fact.
//   - A new machine is committed and the wake-up is lost: the claimer finds it by its own timer,
//     within the full-scan interval.
//   - Another process makes something due: it tells (Engine.Tell), which lowers floors and wakes
//     claimers here. Untold, a row that is due later than our floor is found by the next poll, an
//     older one within the full-scan interval.
//   - A clock is set: nothing. All stored instants are the database's; durations are counted by
//     clocks that cannot be set.
//   - Nobody listened to agents: silence counts only from the listener's return.
//   - The listener promises shorter intervals, a restore is accepted, the policy changes: the
//     policy gets a new number, and RecomputeAgenda judges what was judged under a lower one, never
//     the reverse.
//   - The database is put back from a backup, copied, or promoted from a standby: lifecycle is
//     told, and whatever destroys or reboots waits for `ironherd db accept-restore`. How a copy is
//     recognised is the engine's: see there for which are not.
//   - The machine's row goes (a rejected intent): token, install request, lanes and history stay; a
//     device that surfaces with the token comes back under the same UUID.
//
// # What grows with the fleet
//
// A claim, a commit, a fact, a heartbeat, a page of a list and an explanation read and write by
// key; an idle poll is one statement and one descent of an index. States are counted by the rewrite
// that writes them, as changes that the janitor sums up, so that no two machines wait for each
// other. What a transaction writes of history, agenda and states is written at its end, by one
// statement each. Check and Phases are bounded or paged.
package bmdb
