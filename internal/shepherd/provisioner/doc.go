// Package provisioner turns capacity into machines: the process provision, one pass of one provider
// at a time.
//
// A pass
//
//  1. looks: it reads the BMDB and then lists the provider. When one fails, the pass fails.
//  2. surveys: it finds out which entries are used. This is a pure function of the two lists. Of a
//     list of hosts it records what is said of those that the BMDB knows.
//  3. settles open intents: it closes those whose outcome is known and, the newest first, those
//     without an unanswered call that are beyond max_machines, and adopts machines that carry one
//     of our tokens. It records what follows from the list before it asks for any machine, and a
//     provider that hangs is not asked for more in that pass.
//  4. compares. A used machine that the BMDB does not know is a discrepancy, and so are a machine
//     of the BMDB that the provider does not have, a list without most of its machines, and an
//     entry that is a machine of another provider, or has an address that is recorded of a machine
//     of its list, while that list has the machine at another address, or not any more. A used
//     machine that is younger than the settling time is none yet, unless it carries a token of our
//     form: no lag explains one that the BMDB does not know. While there is a discrepancy, the pass
//     creates nothing at this provider. The pass that finds none creates again. It asks for a
//     machine that is missing by its ID, and records that it is gone when the provider says so:
//     then people can forget it. One that is listed again is asked for, too, but for a host of a
//     list, which step 2 has recorded.
//  5. creates at most a chunk of machines: first it retries open intents, the one that it tried
//     longest ago first, then it takes free capacity in the order of the IDs. While anything is
//     free, open intents get at most half of the chunk. Capacity that fails sits out a penalty.
//     What fails and is of no one piece of capacity (a key of the project, the whole list, the
//     limit of requests) ends and fails the pass. A provider that refuses each request as such,
//     or allows none, and creates nothing, fails it, too. Of the refused intents one stays open to
//     be tried by the next pass, unless that has other capacity; those that were not allowed do.
//
// A host that is new in two lists is taken in by one of the two passes: whoever records it looks
// again, under the locks of both providers, whether a machine of another one has its address.
//
// Policy says how soon passes follow each other (provision_interval). The next pass continues where
// a chunk has not used all capacity. That costs little time: create_rate is slower than passes are.
//
// # Crash safety
//
// A process can die at any step of a creation. The intent tells the next pass which:
//
//	opened ──► called ──► answered: refused for good ³      ──► closed as rejected; else tried again
//	  │          │
//	  │          └── the reply was lost:
//	  │                a device carries the token        ──► closed as provided
//	  │                the capacity is still free        ──► Create, same token, same capacity
//	  │                it is, and beyond the limit ²     ──► closed as rejected
//	  │                that is refused for good ²        ──► closed as rejected
//	  │                another owner has the capacity ¹  ──► closed as other owner
//	  └── never called:
//	                   the capacity is still free        ──► Create
//	                   it is not, or beyond the limit    ──► closed as rejected
//
// ¹ Two complete lists after the settling time must say so, and no device may carry the token. The
// first of the two is kept in memory: after a restart, two more are needed.
//
// ² The settling time must have passed since the last call whose reply was lost, and no device may
// carry the token.
//
// ³ Of a provider that refuses each request one intent stays open (step 5).
//
// A second request for the same capacity is harmless, because it names a concrete piece of
// capacity, which holds one machine.
//
// The BMDB keeps the tokens of closed intents. A machine that turns up later with one of them is
// adopted under its old ID, unless that machine was given back: then it is a discrepancy, if the
// provider has it still when it is asked for it by its ID. A machine that the BMDB does not know is
// adopted when an operator asks for that.
package provisioner
