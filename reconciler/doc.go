// Package reconciler keeps the base resources of a Kubernetes cluster as its newest release wants
// them, without two releases ever fighting over them, and without an API server ever serving beside
// resources that it is incompatible with.
//
// It runs beside every control-plane node's API server. What is authoritative is in etcd, and
// nothing else is:
//
//   - one record per node: its roles and the release of the API server that may run there (package
//     node);
//   - the status: state, version, and minimum compatible release of the resources as they are
//     (package gate);
//   - the key of the leader (package election).
//
// What is decided from them is one pure function, gate.Decide.
//
// What the resources are, the service does not know: it calls an Applier while its node leads. So a
// program can keep resources of its own in the same way. Package engine has an Applier that keeps
// any objects. Run is a whole reconciler; a program that has a supervision tree of its own serves
// the Components of a Service in it; one that wants the parts uses packages gate, node and election
// alone. None of these needs a Kubernetes client but package engine.
package reconciler
