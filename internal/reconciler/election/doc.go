// Package election elects one leader among the processes that campaign, by etcd, and says for how
// long it may trust that it leads.
//
// What is authoritative: the candidates' keys in etcd, one per candidacy, each bound to a lease of
// its own. The leader is the one whose key was created first. As long as its key exists, no other
// can be first; so a transaction on condition that the key is there, with its creation revision
// (Leadership.Conditions), is accepted from the leader alone, whatever anybody believes.
//
//	            grant a lease, put the key          no older key            the key is gone, or the trust window ends
//	(nobody) ─────────────────────────────► waiting ────────────► leading ─────────────────────────────────────────► over
//	                                           │ ctx ends            │ Resign                                          ▲
//	                                           └─────────────────────┴──── revoke the lease: a successor at once ──────┘
//
// The trust window is for what is not a transaction of etcd, such as requests to an API server. It
// ends at
//
//	start of the last successful renewal + TTL − margin,   margin = TTL/5
//
// because etcd counts the lease from a moment after the renewal was sent, never before. It is
// judged by the monotonic and by the boot-time clock, whichever says more: a machine that was
// suspended finds its window closed, at the latest half a second after it has woken up. Renewals
// are sent every quarter of the TTL; one that fails is tried again; the window, not a failure, is
// the end. When it ends, so does the context of Bind, with the reason as its cause: no request that
// obeys it is sent later. What was sent before may still land: a successor waits a little before it
// begins (the settling time of package reconciler).
//
// What happens on each failure: this process dies or is cut off: the lease expires, a successor
// within the TTL and etcd's half second. The reply to the grant or to the put is lost: the lease is
// given up or the key found again. The key is deleted by somebody: noticed by a watch, at once.
// etcd without quorum: nothing can be renewed, the window ends; etcd prolongs the leases when it is
// back, and a new candidacy begins. An etcd member that leads but has lost its quorum goes on
// renewing for up to two of its election timeouts. The next one leads no sooner than one election
// timeout after that loss, and then lets every lease live for its TTL and one election timeout
// more: so no lease ends before what was promised by the last renewal, and the formula above holds.
package election
