// Package service starts the components of a process, supervises them, tells how they are, and
// stops them in order.
//
// What it promises:
//
//   - A component that returns an error or panics is started again: at once the first times, after
//     a pause when it keeps failing. A component that fails does not disturb another one.
//   - Stopping goes stage by stage, and a stage is told to stop only when the one before it has
//     stopped: first the loops (no new work, what runs is finished or handed back), then the
//     listeners (nobody can ask any more), then the state that both rest on (sessions, flushes).
//     One deadline bounds the whole; who has not stopped by then is named in Run's error.
//
// The states of a component:
//
//	waiting ─► running ─► stopped        (the context ended, or there was nothing left to do)
//	              │  ▲
//	              ▼  │ pause
//	           restarting
package service
