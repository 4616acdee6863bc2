// Package election elects one leader among the processes that campaign, by etcd, and says for how
// long it may trust that it leads.
//
// What is authoritative: the candidates' keys in etcd, one per candidacy, each bound to a lease of
// its own. The leader is the one whose key was created first. As long as its key exists, no other
// can be first; so a transaction on condition that the key is there, with its creation revision
// (Leadership.Conditions), is accepted from the leader alone, whatever anybody believes.
//
//	          grant a lease,                              the key is gone, or the
//	          put the key           no older key          trust window ends
//	(nobody) ──────────────► waiting ──────────► leading ────────────────────────► over
//	                            │ ctx ends          │ Resign                         ▲
//	                            └───────────────────┴── revoke the lease: ───────────┘
//	                                                    a successor at once
//
// The trust window bounds what is not a transaction of etcd, such as requests to an API server. It
// ends at
//
//	start of the last successful renewal + TTL − margin,   margin = TTL/5
//
// because etcd counts the lease from a moment after the renewal was sent, never before. The elapsed
// time is that of the monotonic or of the boot-time clock, whichever is longer: a machine that was
// suspended finds its window closed, at the latest half a second after it has woken up. A renewal
// is sent every quarter of the TTL, and tried again if it fails. Not a failed renewal but the end
// of the window ends the leadership. The context of Bind then ends too, with the reason as its
// cause, and no request that obeys it is sent later. What was sent before may still land, so a
// successor waits a little before it begins (the settling time of package reconciler).
//
// What happens on each failure:
//
//   - This process dies or is cut off: the lease expires. A successor leads within the TTL and
//     etcd's half second.
//   - The reply to the grant or to the put is lost: the candidate gives the lease up, or finds its
//     key again.
//   - Somebody deletes the key: the leader's watch notices at once.
//   - The leader cannot do its work (Config.Fault; its API server is dead): it hands over at once,
//     if there is a candidate that has no fault. Each candidate keeps its fault in its key. If all
//     have one, the leader stays.
//   - etcd has no quorum: nothing can be renewed, and the window ends. When etcd is back it
//     prolongs the leases, and a new candidacy begins.
//   - An etcd member leads but has lost its quorum: it goes on renewing for up to two of its
//     election timeouts. The next member leads no sooner than one election timeout after that loss,
//     and then lets every lease live for its TTL and one election timeout more. So no lease ends
//     before what the last renewal promised, and the formula above holds.
package election
