// Package command is the program ironherd-reconciler: its commands, its configuration, its metrics.
// Only this package knows both the service and the resources.
//
// A setting comes from the configuration file, the environment or a flag; the later one wins. The
// program reports all faults at once, each with its place. Data goes to standard output, everything
// else to standard error. Exit codes are those of ironherd: 0 done, 1 failed, 2 bad usage or input,
// 3 not found, 5 conflict, 6 partly done, 7 unreachable or timed out, 130 interrupted.
package command
