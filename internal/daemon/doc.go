// Package daemon is the control plane as a value: it opens the database, makes every part that the
// configuration asks for, wires them, and runs them until it is told to stop. It is the only
// package that knows everything.
//
//	Open ──► opened ──► Run ──► ready ──► drained ──► Close
//
// Once it is opened, its addresses are taken and the database is held, but nothing is served.
//
// What it promises:
//
//   - Whatever would keep it from working is told by Open, in one sentence: a port in use, a
//     database in use or unreadable, a key or a certificate that makes no sense. What fails later
//     is started again, and reported by /healthz.
//   - Run returns when everything has stopped, in order: loops, listeners, state. It may be killed
//     at any moment instead.
//   - Close leaves nothing behind: no listener, no lock, no goroutine. It may be called more than
//     once, and without Run.
package daemon
