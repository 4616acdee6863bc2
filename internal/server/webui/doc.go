// Package webui is the web page: the fleet at a glance, and each machine with its facts, its
// decisions and its history. It reaches the fleet only through api/fleet/v1, as any
// other client does, and can change nothing.
//
// It promises:
//
//   - Every page is complete as it is served: no script is needed to read it, and without one it
//     refreshes itself.
//   - With the page's own script it is live: package live loads what is watched once, however many
//     watch it, and sends only what changed.
//   - When the control plane does not answer, the last view stays, under a banner that says since
//     when and why.
//   - Nothing is loaded from elsewhere, and no script or style is inline: the content security
//     policy forbids both.
//   - Whatever it shows is foreign text (host names come from providers, details from agents) and
//     is escaped. Commands that it offers for copying name machines by ID alone.
//
// How a page comes about:
//
//	request ─► view: what is looked at, from path and query
//	             │ load: questions to api/fleet/v1
//	             ▼
//	           content: fragments, kept by package live
//	             ├─► page: the fragments in a layout
//	             └─► stream: the fragments that changed, as server-sent events
package webui

//go:generate go tool -modfile=../../../tools/templ/go.mod templ generate -log-level error
//go:generate sh -c "go tool -modfile=../../../tools/gofumpt/go.mod gofumpt -w *_templ.go"
