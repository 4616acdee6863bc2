// Package command is the program ironherd-reconciler: its commands, its configuration, its metrics.
// It is the only package that knows both the service and the resources.
//
// A setting comes from the configuration file, the environment, or a flag; the later one wins. All
// faults are told at once, each with where it is. Data goes to standard output, everything else to
// standard error. Exit codes are those of ironherd: 0 done, 1 failed, 2 bad usage or input, 3 not
// found, 5 conflict, 6 partly done, 7 unreachable or timed out, 130 interrupted.
package command
