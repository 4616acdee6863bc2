// Package machine holds end-to-end tests on virtual machines: the real control plane, the real
// agent, and a stock Debian under a real kernel, which is taken over, installed, and cut off from
// power.
//
// The disk of that Debian is built once from Debian's packages and kept in the user's cache
// directory, until the package lists' sources or the builder change.
package machine
