// Package node is the registry of the control-plane nodes: one record each in etcd, with the node's
// roles and the release of the API server that may run there.
//
// Only the node itself writes its record. An operator removes the record of a node that is gone for
// good. The release in it changes only while no API server runs there: after the old one has
// stopped, and before the new one starts. That is why it is safe to decide from the records alone.
//
// A node whose record cannot be read does not disappear. It keeps its last known release and roles:
// those seen before, or else those in etcd's history of the key. A record that cannot be read
// cannot have let another API server start, so what was last known is what may run. If nothing is
// known, the node counts as a controller of unknown release, and no leader may act until its record
// is written again or removed.
package node
