// Package agent is the program that runs on a managed machine: it proves its key to the control plane, sends heartbeats,
// reports the hardware and installs an operating system.
package agent
