// Package lifecycle is the one pure function of Ironherd: from a machine's facts, its backoffs and
// holds, the policy and an instant it decides, for each process, whether that process is wanted,
// when, and why (not).
//
// Nothing else in the system decides. The claim, the agenda, `machine explain`, the page, the
// metrics and the simulations all call it, so that they cannot disagree.
//
// What it promises:
//
//   - It is total and pure: no clock, no state, no I/O; every record gets a plan, also one that
//     "cannot happen".
//   - Every decision carries its reason in words, fit for an operator.
//   - An answer of Later or Due names a finite instant. Without a new fact, an answer given later
//     never names an earlier one: a row of the agenda that was right when it was written can be too
//     early, but never too late.
//   - What waits for an event (Waiting) waits for one that is itself a write of facts, and so
//     rewrites the agenda. A wait that nobody might ever end is bounded by a deadline of some other
//     process.
//
// The way of a machine:
//
//	creating ► provisioning ► provided ► agent-started ► available ► installing ► booting ► installed
//	                 │            ▲            │             │            │          │
//	                 ▼            └─recovery───┴─silent◄─────┴────────────┴──────────┘
//	            failed, missing               (quarantined: from anywhere, by a person's word)
package lifecycle
