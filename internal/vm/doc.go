// Package vm runs virtual machines under QEMU: real kernels on emulated hardware, as the machines
// of tests and of a demonstration.
//
// A Machine has disks that are files, a firmware (BIOS, or UEFI with Secure Boot or without), a
// serial console that is written to a file, and a network of its own: QEMU's user-mode network,
// shut off from every other one. Ports of the guest are forwarded to loopback of the host, and
// chosen ports of the host's loopback are reached from the guest under GatewayAddress. Nothing else
// gets in or out.
//
// # States
//
//	Start → running ⇄ paused
//	           ├── the guest restarts: it goes on running, or stops (StopAtReset)
//	           └── Kill, or the guest powers off: ended; Start again with the same files
//
// A machine needs no rights but those of its files. It ends with the process that started it: QEMU
// is told by the kernel (PR_SET_PDEATHSIG). Hardware virtualization is used where it works, which
// is tried once, and else the processor is emulated: about ten times slower, and the same in every
// other way.
package vm
