// Package cluster starts a real Kubernetes API server on a real etcd, for tests and measurements:
// the programs themselves, built from the Go modules that test/kube pins, as processes of their own
// on loopback, which may be stopped, killed and started again.
//
// The first Build on a machine compiles both, which takes minutes; what it made is kept in the
// user's cache directory under a name that depends on everything that went into it, so that it is
// made once. `make kube` does it ahead of the tests.
//
// There are no controllers and no nodes: what a test puts in is what is there. Authorization is
// RBAC; tokens are real, both static ones for users and signed ones for service accounts. Every
// request is in the audit log, written before it is answered.
package cluster
