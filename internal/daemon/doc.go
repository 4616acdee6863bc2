// Package daemon is the control plane as a value. It opens the database, makes every part that the
// configuration asks for, connects them, and runs them until it is told to stop. It is the only
// package that imports all parts.
//
//	Open ──► Run ──► ready ──► the context ends ──► drained ──► Close
//
// After Open it holds its addresses and the database, and serves nothing yet.
//
// It promises:
//
//   - Open reports, in one sentence, whatever would keep it from working: a port in use, a database
//     in use or unreadable, a key or a certificate that cannot be used. What fails later is started
//     again, and /healthz reports it.
//   - A start that is refused for one of these leaves the fleet's policy and providers as they are.
//   - Run stops everything in order (loops, listeners, state) and returns when it has stopped. The
//     process may be killed at any moment instead.
//   - Close leaves no listener, no lock and no goroutine. It may be called more than once, and
//     without Run.
package daemon
