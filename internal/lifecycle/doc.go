// Package lifecycle is the pure function that says what is due: from a machine's facts, its
// backoffs and holds, the policy and an instant it decides, for each process, whether that process
// is wanted, when, and why (not).
//
// Nothing else in the system decides that; what people may ask for is said by package verb. The
// claim, the agenda, `machine explain`, the page of a machine and the simulations all call it.
// Lists, counts and metrics show what it said when the machine was last judged. It also says what a
// report of an install means that comes late or twice.
//
// What it promises:
//
//   - It is total and pure: it has no clock, no state and no I/O, and every record gets a plan,
//     also one that "cannot happen".
//   - Every decision has its reason in words that an operator understands.
//   - Later and Due name a finite instant. Without a new fact, the same question asked later never
//     gets an earlier instant. So a row of the agenda that was right when it was written can become
//     too early, but never too late.
//   - Waiting is for an event that is itself a write of facts, which rewrites the agenda. Where the
//     event may never come, a deadline of another process bounds the wait.
//
// The way of a machine:
//
//	creating ─► provisioning ─► provided ─► agent-started ─► available
//	                │              ▲              │              │  │
//	                ▼              │              ▼              │  ▼
//	         failed, missing       └─recovery── silent ◄─────────┘ installing ─► booting ─► installed
//	                                              ▲                     │            │
//	                                              └─────────────────────┴────────────┘
//
// An agent that was silent before a maintenance, a quarantine or a restart on purpose is waited for
// anew, so its machine is agent-started until it is heard.
//
// A reinstall that was called off in time leads back to installed; how is told in leave.go.
//
// An operator can quarantine a machine in every state, work on it (maintenance), switch it off or
// give it back (releasing).
package lifecycle
