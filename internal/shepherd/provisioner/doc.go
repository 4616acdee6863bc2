// Package provisioner turns capacity into machines: the process provision, one pass of one provider
// at a time.
//
// A pass
//
//  1. lists the provider and looks at the BMDB, in parallel; a failure of one cancels the other and
//     fails the pass,
//  2. resolves which entries are used (survey), a pure function of the two lists,
//  3. settles the intents that are open: closes those whose outcome is known, adopts machines that
//     carry a token of ours,
//  4. compares: a used machine that the BMDB does not know, a machine of the BMDB that the provider
//     does not have, a list that lost most of its machines. Any such discrepancy stops creation at
//     this provider, and nothing else. It clears itself,
//  5. creates at most a chunk of machines: retries of open intents first, then free capacity in the
//     order of its IDs.
//
// Passes follow each other by policy (provision_interval). A chunk that does not exhaust the
// capacity is continued by the next pass: creation is bounded by pace (create_rate) long before it
// is by passes.
//
// # Crash safety
//
// Creation can die anywhere; the intent tells the next pass where:
//
//	opened ──► called ──► answered ──► closed: rejected
//	   │          │
//	   │          └─ (reply lost) ──► tagged device found ──► closed: provided
//	   │                          ──► capacity still free: Create again, with the same token on the same capacity
//	   │                          ──► another owner, twice, after the settling time, and no device found by token ──► closed: other owner
//	   └─ (never called) ──► capacity still free: Create;  else ──► closed: rejected
//
// A second request for the same capacity is harmless: a concrete piece of capacity is always named,
// and holds one machine. That it was seen twice with another owner is kept in memory: after a
// restart it has to be seen twice again.
//
// Tokens of closed intents are kept in the BMDB. A machine that surfaces later with one of them is
// adopted under its old ID.
package provisioner
