// Package kexec replaces the operating system of a machine by one that lives in memory alone: the
// machine's own kernel, started again, with a file system that this package has built.
//
// # Order
//
//	Survey → (nothing speaks against it) → Plan.Load → Jump
//
// Survey only reads. It tells everything that it finds: what speaks against a jump, and what an
// operator should know of it. Load builds the file system in memory and gives it to the kernel
// (kexec_file_load), which verifies the signature of the kernel image where it is told to. A loaded
// kernel changes nothing, and Unload takes it back. Jump does not return: it brings the disks to
// rest, mounts them read-only and starts the loaded kernel. It can be called off until they are
// read-only.
//
// # What is carried
//
// The kernel image is the one that runs, found by its release and told apart by its version,
// because only that one fits the modules and is known to run here. The modules are those that drive
// the network interfaces and the disks that are there, from the device up to its bus, and those of
// the same kinds that are loaded besides, each after what it depends on, with the firmware that
// they name. The kernel's parameters are those that say how to reach the hardware and the consoles;
// those that say where the old system lies are left out.
//
// # The installed system
//
//	LoadInstalled → Start
//
// LoadInstalled gives the kernel of a system on a disk to the running one, as the first entry of
// GRUB's configuration there names it. Start starts it. Both are for a system that lives in memory:
// nothing is brought to rest but what was written.
//
// # What a crash leaves
//
// Nothing here writes to a disk. Until the jump the old system goes on; whoever resets or loses
// power after it boots the old system again. A kernel that panics in memory restarts the machine.
//
// The format of the file system is that of the kernel's documentation
// (Documentation/driver-api/early-userspace/buffer-format.rst).
package kexec
