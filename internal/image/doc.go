// Package image makes a disk image of Debian that machines can be installed with.
//
// Build puts packages together with mmdebstrap on a Debian host, and a file system, a partition
// table and boot loaders around them. It needs root, and no container engine, no loop device and no
// mount of its own: file systems are written into files.
//
// # What the image is
//
//	MiB 0          protective MBR with GRUB's first stage, GUID partition table
//	MiB 1          partition 1, BIOS boot: GRUB's core image
//	MiB 2..65      partition 2, EFI system: Debian's signed shim and GRUB, also on the removable path
//	MiB 66..       partition 3, root: ext4, the last partition, so that it can grow
//
// The same disk boots by BIOS and by UEFI, with secure boot too. The system writes to the first
// serial port as well as to the screen, asks for its addresses by DHCP, lets in the SSH keys that
// it was built with, makes host keys of its own on its first boot, and those of the package
// ssl-cert, and grows its root file system to the partition. There is no cloud-init.
//
// Where the agent's executable was given, a unit runs its `firstboot`: it takes what the install
// has left in the first-boot area of the disk, and tells the control plane that the system is up.
//
// # Reproducible
//
// The same packages, options and timestamp give the same image to the byte, unless a package makes
// something of its own when it is installed. Every UUID is derived from these, file times are at
// most the timestamp, and files are written in the order of their names. The manifest says which
// packages, which timestamp and which digest. Packages change when the archive does; a snapshot of
// it as the source pins them.
//
// # Failures
//
// Programs and files that are missing on the host are named before anything is done, programs with
// the packages that bring them; so is a file that is in the place of the manifest and is not that
// of an earlier build of the same file. A build that fails or is interrupted leaves what was at the
// output's place: image and manifest are made in a directory beside it, and renamed when both are
// whole, the manifest last. If that is cut short, an image is left without a manifest, and never
// with another one's. A build that is killed leaves its directory (.ironherd-image-*), and its
// tools go on. The next build of the same host beside it removes that, unless a tool is still at
// work there.
package image
