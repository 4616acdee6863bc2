// Package install writes an operating system image to a disk of the machine.
//
// # Order
//
//	choose the disk → may be erased? → the server has the image → wipe its first and last MiB
//	                → stream the image, all but its first MiB → the digest matches
//	                → first-boot area, seed → sync → backup of the table, first MiB → sync
//	                → boot entry of the firmware → the kernel reads the partitions
//
// A disk that holds anything that is known by its signature is only written where the request
// allows it. An older install of the same machine is no stranger.
//
// Whatever boots a disk (boot sector, both partition tables) lies in its first and last MiB. An
// install wipes both before anything else. It writes the first MiB last, when everything else is on
// stable storage, so that a disk that was written in part never boots. An install that fails leaves
// a wiped disk; it never leaves the old system half overwritten and bootable.
//
// Fetching, decompressing, hashing and writing overlap, over a fixed number of buffers, and the
// disk begins with what was written before the whole image has come. So memory does not grow with
// the image, besides the window that its compression asks for. Blocks of zeros are never skipped:
// the disk makes them zeros in the cheapest way that it has, or they are written.
//
// # First-boot area
//
// What the installed system needs on its first boot lies in one 1 MiB block of the disk, at
// FirstBootOffset: 16 bytes "IRONHERD-BOOT-1\n", the length N of the payload as an unsigned 32-bit
// big-endian integer (at most 128 KiB), 32 bytes SHA-256 of the payload, then N bytes: the payload,
// an encoded agentv1.FirstBoot. The rest of the block is zeros. An image that reaches into the
// block is refused.
//
// # Partition table
//
// An image's table is written as it is, unless the request wants the last partition to grow, or
// first-boot data for cloud-init. Then its backup moves to the end of the disk, and what may be
// used of the disk ends in front of the first-boot area, so that nobody who grows a partition later
// grows it over that. The seed for cloud-init is a partition of 2 MiB, right in front of the area.
//
// Below a root other than "/" a disk may be a regular file: it is written in the same order, but
// not synced, because such a file is somebody's simulation and has no power to lose of its own.
package install
