// Package webui is the page worth leaving open: the fleet at a glance, and each machine with its
// facts, its decisions and its history. It reaches the fleet only through api/fleet/v1, as any
// other client does, and can change nothing.
//
// It promises:
//
//   - Every page is complete as it is served: no script is needed to read it, and without one it
//     refreshes itself.
//   - With the page's own script it is live. What viewers watch is asked for once, however many
//     they are: one poller per view, at most one question of a kind per interval, none while nobody
//     looks. Only what changed is sent.
//   - When the control plane does not answer, the last view stays, under a banner that says since
//     when and why.
//   - Nothing is loaded from elsewhere, and no script or style is inline: the content security
//     policy forbids both.
//   - Whatever it shows is foreign text (host names come from providers, details from agents) and
//     is escaped. Commands that it offers for copying name machines by ID alone.
//
// How a page comes about:
//
//	request ─► view (what is looked at, from path and query) ─► shelf (its last content, and when it was asked for)
//	                                                              │ load: questions to api/fleet/v1
//	                         feed (one poller per watched view) ──┘
//	                           │ frames                           page: fragments in a layout
//	                           └─► live: server-sent events, the fragments that changed
//
// A fragment is an element with an ID and a mark, which is a hash of its content. Times are written
// absolutely in what is hashed and sent, and counted ("5 min ago") where they are shown, so that
// the passing of time alone changes nothing.
package webui

//go:generate go tool -modfile=../../../tools/templ/go.mod templ generate -log-level error
//go:generate sh -c "go tool -modfile=../../../tools/gofumpt/go.mod gofumpt -w *_templ.go"
