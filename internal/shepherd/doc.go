// Package shepherd is the control loop engine: one engine runs every loop that works on machines or
// providers. Its children are what the loops do: provisioner, initializer, updater; and the
// janitor, which keeps the BMDB in order.
//
// A Handler says what a piece of work means; the engine does everything else:
//
//	            ┌──────────── claim ────────────┐          ┌──── act ────┐          ┌────── commit ──────┐
//	agenda ───► │ one transaction, no more than │ ── n ──► │ outside any │ ───────► │ finish with facts, │ ───► agenda
//	            │ the free slots                │  tasks   │ transaction │          │ fail, cancel       │
//	            └───────────────────────────────┘          └─────────────┘          └────────────────────┘
//
// The three phases are separately callable (Loop.Open, Holder.Claim, Task.Act, Task.Commit), so
// that a simulation can drive them one step at a time. Loop.Run drives them for real.
//
// # What is authoritative
//
// The BMDB alone. The engine keeps nothing that a restart would miss: who holds what is a lease
// there, when something is due is the agenda there, and how often it failed is the backoff there.
// Wake-ups and remembered due times only make it look sooner.
//
// # Sessions
//
// Each loop has a session of its own, named after its process, so that people see which loop holds
// a machine and a loop that hangs loses its own work alone. A Holder is one session with the work
// that is done through it:
//
//	open ──► claiming ──► retiring ──► closed
//	            │             ▲
//	            └── lost ─────┘    lost, given up, or the loop drains: no more claims
//
// A goroutine of its own extends the session. Every act runs under a context that ends with the
// trust window (bmdb.Work.Guard), so it has stopped before anybody else can get the lease.
//
// # Failures
//
//   - The session is lost: what was done through it is cancelled, nothing of it is committed, a new
//     session is started.
//   - A claim fails: nothing is known to be held. What it had taken all the same is handed back
//     with the session's next extension.
//   - A commit fails: it is repeated (outcomes are idempotent) while the session is trusted. If the
//     BMDB refuses the facts themselves, the work fails with that as its cause. If it cannot be
//     committed for long, the session is retired.
//   - A handler panics: that piece of work fails with the panic as its cause, and the stack is
//     logged. Nothing else is touched.
//   - A handler ignores the end of its context: it keeps its slot; its session is not closed but
//     left to its deadline.
//   - The context of Run ends: no new claims; what runs may go on for the grace period, is then
//     cancelled and handed back; sessions are closed.
package shepherd
