// Package etcd reaches etcd, and follows ranges of its keys.
//
// What a Follower promises of each snapshot that it publishes: it is the range exactly as it was at
// Snapshot.Revision, or at a later revision up to the next change that is not in it. So a
// transaction on condition that no key of the range has a modification revision above
// Snapshot.Revision (Unchanged) fails if anything was put that the snapshot does not have. The
// header of a watch's answer would not do: while a watch is catching up, it carries the store's
// revision, and that is newer than the events beside it. Deletions leave no trace that a condition
// could name: whoever relies on a snapshot must be content with fewer keys.
//
// A follower goes on through everything: a watch that is cancelled, a connection that is lost, a
// revision that was compacted away, a member without a leader. It then reads the range anew
// (linearizably). It does so every ten seconds in any case, so that nothing that ever went wrong
// stays wrong, an etcd that was restored from a backup included.
package etcd
