// Package node is the registry of the control-plane nodes: one record each in etcd, with the node's
// roles and the release of the API server that may run there.
//
// A node writes its own record, and nobody else does; an operator removes the record of a node that
// is gone for good. The release in it changes only while no API server runs there: after the old
// one has stopped, before the new one starts. That is what makes it safe to decide from the records
// alone.
//
// A record that cannot be read never makes its node disappear. The node keeps the release and roles
// that it was last known with: those seen before, else those in etcd's history of the key. What
// cannot be read cannot have let another API server start, so what was last known is what may run.
// If nothing is known, the node counts as a controller of unknown release, which holds everything
// up until its record is written again or removed.
package node
