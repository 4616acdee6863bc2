// Package machine holds end-to-end tests on virtual machines: the real control plane, the real
// agent, and a stock Debian under a real kernel, which is taken over, installed, and cut off from
// power.
//
// One machine's way from a stock Debian to an installed system is part of every run of all tests.
// The others take longer, and `make test-vm` runs them.
//
// The disk of that Debian is built once from Debian's packages and kept in the user's cache
// directory, until the package lists' sources or the builder change.
package machine
