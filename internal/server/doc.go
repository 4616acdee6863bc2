// Package server is what all of the control plane's servers share: listeners, TLS, certificates,
// who is calling, and the one table from error kinds to the codes of gRPC, Connect and HTTP.
//
// It promises:
//
//   - A port or socket that is taken is an error of kind InUse, in one sentence, before anything is
//     served.
//   - Status is total over fleet.Kinds: no error reaches a caller without a code that was chosen
//     for its kind.
//   - The certificates that it makes survive restarts and crashes, are never readable by others,
//     and are renewed long before they expire without a connection being closed.
//   - A caller is trusted for the Unix socket or for a token, and for nothing else: an address says
//     nothing, because proxies speak for others. What the caller's role does not cover is refused
//     without a look at the body. Over HTTP/2 the answer waits for the body, within bounds, because
//     an answer that comes before looks cut off to some.
//   - Whoever is not admitted holds little memory and few descriptors, and keeps nobody out who is.
//     A refused call does not cut others on the same connection.
//   - No credential, header or query string is ever logged.
//
// What serves lives beneath it: agentapi for agents, fleetapi for operators and automation, webui
// for browsers. They do not know of each other.
package server
