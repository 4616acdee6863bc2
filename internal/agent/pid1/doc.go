// Package pid1 is what the first process of a machine has to do, whoever it is: mount what the
// kernel offers, give it randomness, load the modules that were packed, set the clock, collect the
// processes that nobody waits for, keep the hardware watchdogs quiet, and write its log where a
// person at the console sees it.
//
// Everything but the mounts may fail without harm: it is logged, and the machine goes on. What the
// first process may never do is end, because the kernel panics then. A system that was started by
// package kexec restarts the machine after a panic.
//
// LastWords survive such a restart where the machine has EFI: they lie in a variable of the
// firmware.
package pid1
