// Package test holds end-to-end tests: the real programs, as processes, against the simulated world
// and against a real host.
package test
