// Package rehearsal runs whole control planes against a simulated world, in virtual time: hours in
// seconds, hundreds of machines, every fault mixed, and the same again whenever it is asked for.
//
// The control planes are the real ones: the loops of package shepherd with their handlers, the
// janitor, package lifecycle, and the BMDB on SQLite, in a file of its own. What they reach through
// an interface is simulated: providers (package provider), hosts behind SSH (initializer.Host) and
// agents (the calls of the BMDB that the agent API makes). Nothing leaves the process.
//
//	            Plan: seed, machines, faults, what people ask for
//	              │
//	┌─────────────▼──────────────────────────────────────────────┐
//	│ schedule: one event at a time, in the order of virtual time │
//	└───┬────────────────────────┬───────────────────────┬────────┘
//	    ▼                        ▼                       ▼
//	controllers              simulated world          watch
//	claim ► act ► commit ──► providers, hosts,  ◄──── I1–I11, from outside
//	    │                    agents
//	    └── the BMDB on SQLite, through a connection that breaks
//
// # What it promises
//
//   - One goroutine runs at a time. An act is a strand: a goroutine that gives way wherever the
//     real one would wait (a call of a provider or a host, a transaction in the middle of work, a
//     pause), and goes on when the schedule says so. Claims, commits and extensions are one step
//     each.
//   - The same plan gives the same trace, to the byte (I12), whatever the machine it runs on does
//     meanwhile. IDs that nobody can guess are left out of it.
//   - What a controller does ends with it. A crash leaves what was sent on its way; a pause leaves
//     everything as it was, and time goes on.
//   - What the world sees is judged at each step; see watch.go for what is asked. So is what the
//     database keeps of that step, as far as it can be; see durable.go. What the database says of
//     itself is checked now and then, and at the end. When the faults have stopped, all must be
//     well within a bound.
//
// # What it leaves out
//
// The wire: SSH, HTTP and gRPC, and their clients. Calls of providers that are no lists are paced
// all the same, by the provider.Pacer of the real clients (see pace.go); the turns that they get of
// the database take no time here, and no call is repeated by itself. Suspended hosts: time is one
// for all. Disks: each host has one, with the system that it came with, and no image is written
// to it; of what a request says of disks, only erase counts. Creations at one provider are made one
// at a time, whatever create_parallelism says. One database, which never loses what it committed.
package rehearsal
