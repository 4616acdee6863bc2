// Package etcd connects to etcd, and follows ranges of its keys.
//
// A Follower promises of each snapshot that it publishes: it is the range exactly as it was at
// Snapshot.Revision, and at every later revision up to the next change that is not in it. So a
// transaction fails under the condition Unchanged (no key of the range has a modification revision
// above Snapshot.Revision) if anything was put that the snapshot does not have.
//
// Snapshot.Revision is the revision of the last event. The header of a watch's answer would not do:
// while a watch is catching up, it carries the revision of the store, which is newer than the
// events beside it. A deletion leaves no trace that a condition could name, so whoever relies on a
// snapshot must tolerate that keys have gone since.
//
// When a watch is cancelled, a connection is lost, a revision was compacted away or a member has no
// leader, the follower reads the range anew, linearizably. It also does so every ten seconds. So
// whatever went wrong is soon right again, even after etcd was restored from a backup.
package etcd
