// Package shepherd is the control loop engine. One engine runs every loop that works on machines or
// providers. The packages below it are the handlers: provisioner, updater, initializer,
// operations, recoverer and prober. The janitor, which keeps the BMDB in order, needs no leases and
// has a loop of its own.
//
// A Handler says what a piece of work means; the engine does everything else:
//
//	            ┌──── claim ─────┐         ┌──── act ────┐       ┌────── commit ──────┐
//	agenda ───► │ one            │         │ outside any │       │ finish with facts, │ ───► agenda
//	            │ transaction,   │ ─ n ──► │ transaction │ ────► │ fail, cancel       │
//	            │ n ≤ free slots │  tasks  │             │       │                    │
//	            └────────────────┘         └─────────────┘       └────────────────────┘
//
// Loop.Run drives the three phases. A simulation drives them one step at a time: Loop.Open,
// Holder.Claim, Task.Act, Task.Commit.
//
// # What is authoritative
//
// The BMDB alone. It has the leases (who holds what), the agenda (when something is due) and the
// backoffs (how often it failed). The engine keeps nothing that a restart would miss: wake-ups and
// remembered due times only make it claim sooner.
//
// # Sessions
//
// Each loop has a session of its own, named after its process. So people see which loop holds a
// machine, and a loop that hangs loses its own work alone. A Holder is one session with the work
// that is done through it:
//
//	open ──► claiming ──► retiring ──► closed
//
// A holder retires, and claims no more, when its session is lost or given up, or when the loop is
// told to stop. The loop opens the next one unless it stops.
//
// A goroutine extends the session. Every act runs under a context that ends with the trust window
// (bmdb.Work.Guard), so it has stopped before anybody else can get the lease.
//
// # Slots
//
// A loop has as many slots as pieces of work may be under way. Machines at which the process has
// failed since it last succeeded get every second slot at most: however many of them hang, those
// that work find a slot. A machine that was never tried counts among the latter. Machines of one
// provider get every second slot at most while something is due at others, and a question to a
// provider is given up when it hangs (Source.Ask).
//
// # Failures
//
//   - The session is lost: the engine cancels what was done through it, commits nothing of it and
//     starts a new session.
//   - A claim fails: nothing is known to be held. The session's next extension hands back what the
//     claim had taken all the same.
//   - A commit fails: the engine repeats it while the session is trusted; outcomes are idempotent.
//     If the BMDB refuses the facts themselves, the work fails with that as its cause. If the
//     commit does not succeed in time, the session retires.
//   - A handler panics: that piece of work fails, and the log has the stack. Nothing else is
//     touched.
//   - A handler ignores the end of its context: it keeps its slot. The engine does not close its
//     session but lets it expire, so that nobody else gets the lease while the handler works.
//   - The context of Run ends: the engine claims no more. Running work may go on for the grace
//     period, and is then cancelled and handed back. Then the engine closes its sessions.
package shepherd
