// Package live keeps views current for everybody who looks at them. It knows nothing of what is
// shown: a View says what it is called, how its content is loaded, and what to tell when that
// fails.
//
// It promises:
//
//   - What is asked does not depend on how many look. A view is loaded at most once an interval,
//     for all of its pages and streams, and not at all while nobody looks. Once several callers
//     watch it, it is asked for none of them (Options.Shared), nor for whoever loads it as a page.
//   - A viewer is sent everything once, then only the fragments that changed. While nothing
//     changes, a beat every ten seconds proves that the stream is alive.
//   - When a view cannot be loaded, its last content stays, under a notice of the view's own.
//   - Nothing is begun beyond its viewers: the goroutine that loads a view again and again has
//     ended when the stream of its last viewer has returned. A load that is under way when its
//     caller leaves goes on for a timeout at most, or until the server has stopped. So those who
//     leave before it ends, and come again, do not have it begun again. Two loads at most go on so;
//     one more ends with its caller.
//   - What can pile up is bounded: viewers, views that are watched, loads whose callers have left,
//     and views that are remembered, besides those that are waited for.
//     A viewer beyond the bounds is told to come again later, unless another caller has more than
//     they would have: the oldest of those who have the most ends then.
//   - A panic while a view is loaded is the failure of that view, and is logged.
//
// How the parts belong together:
//
//	                  ┌──────────────────────────── Hub.Look ◄── a page
//	View.Load ◄── Cache: the last content of each view
//	                  └── feed: loads one view again and again, while it has viewers
//	                        └── Hub.Serve: the stream of one viewer, as server-sent events
//
// A Fragment is an element with an ID and a mark, which is a hash of its content. What is hashed
// and sent has absolute times; a page counts them ("5 min ago") under a context of CountFrom. So
// the passing of time alone changes nothing, and sends nothing.
package live
