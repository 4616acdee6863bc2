// Package cluster starts a real Kubernetes API server on a real etcd, for tests and measurements.
// Both are built from the Go modules that test/kube pins, and run as processes on loopback, which a
// test may stop, kill and start again.
//
// The first Build on a machine compiles both, which takes minutes. It keeps them in the user's
// cache directory, under a name that depends on everything that went into them. `make kube` builds
// them ahead of the tests.
//
// There are no controllers and no nodes, so the cluster holds only what a test puts in.
// Authorization is RBAC. Tokens are real: static ones for users, signed ones for service accounts.
// The API server writes every request to the audit log before it answers.
package cluster
