// Package gate is the release gate: pure functions that decide who may reconcile, when, what is
// announced, and which API server may serve, and say why in words. Whoever has the status, the
// nodes and a build can call it; nothing here touches etcd or a clock.
//
// The status announces one promise: an API server may serve with the base resources as they are,
// and as they may become at any moment, if and only if
//
//	its release ≥ the status's minimum compatible release, and
//	the minimum reconciler release that it needs ≤ the status's version.
//
// Let V and M be the status's version and minimum compatible release, R our release, A the minimum
// API server that our base resources admit. What is decided, and why it keeps the promise:
//
//	no status        pass, then create (R, A)       no API server serves before there is a status
//	(R, A), done     pass, nothing to announce      the resources are ours
//	V ≤ R and M ≥ A  (V, M) working, pass,          whoever (V, M) admits has release ≥ M ≥ A and
//	                 (R, A) done                    needs ≤ V ≤ R: it works with the old resources,
//	                                                with ours, and with any mixture
//	otherwise,       hold until no node is newer    whoever serves has a release in [A, R], and so
//	or unreadable    than R and none is older       needs ≤ R (no minimum is above its own release):
//	                 than A; then, on condition     it works with ours. Whoever starts from here on
//	                 that no node has changed,      is admitted by both sides
//	                 write the restricted status
//	                 (min(V, R), max(M, A))
//	                 working; pass; (R, A) done
//
// A status that cannot be read may stand for anything: its restricted status is (none, R), which
// admits nobody until it is done. It says nothing of who serves already, so the next leader, if it
// comes to that, treats it as unreadable, too.
//
// Three things are the caller's: each write is a transaction on condition that the writer still
// leads and that the status has not changed since it was read; a guarded write, besides, that no
// node has changed since Nodes.Revision; and a node's record names a release before an API server
// of that release may start, and as long as it may run.
package gate
