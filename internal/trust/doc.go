// Package trust says for how long the holder of a lease may act on it without asking whoever
// granted it.
//
// The lease is kept elsewhere: a session in a database, a lease of etcd. Its holder extends it, and
// must have stopped before the grantor can give it to somebody else, even while the two cannot
// talk. A Window tells when:
//
//	trusted until = start of the last successful extension + interval − margin
//
// The holder reads the start before it sends the request. The grantor counts the interval from a
// later moment. So the window closes before the lease can end, by at least the margin: that is for
// the holder to stop what it does, and for clocks that do not run at the same rate.
//
//	             Extend: the end moves, never back
//	                ┌───┐
//	 NewWindow   ┌──┴─┐ │   the end is reached: Options.Expired    ┌────────┐
//	───────────► │open│◄┘ ───────────────────────────────────────► │ closed │ for good
//	             └────┘     Close: the cause that it is given      └────────┘
//
// Time is what a Clock says: the larger of what the monotonic and the boot-time clock have counted.
// The latter goes on while the machine is suspended. Nobody can set either. Nothing depends on the
// time of day.
//
// What a Window promises: it closes once, with one cause. When a call has found it closed, or has
// closed it, every context from Guard is done already, with that cause. What was sent before may
// still take effect: only a condition on the write itself (an epoch, a revision) keeps that out.
//
// What happens on each failure:
//
//   - An extension fails: the end stays where it is. The holder tries again while the window is
//     open.
//   - The reply to an extension comes after the end: Extend says so, and the window stays closed.
//     Work has been cancelled, or would have been had the timer run, so the holder begins anew.
//   - The machine is suspended beyond the end: no timer runs meanwhile. Every method judges by the
//     clock and so finds the window closed at once. The contexts from Guard are cancelled soon
//     after the machine has woken up: within half a second, or half the margin where that is
//     shorter.
//   - The kernel has no boot-time clock: the monotonic clock decides alone, and a suspension is not
//     noticed.
package trust
