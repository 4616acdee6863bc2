// Package install writes an operating system image to a disk of the machine.
//
// # Order
//
//	choose the disk → wipe its first and last MiB → stream the image, all but its first MiB
//	                → the digest matches → first-boot area → sync → first MiB → sync
//
// Whatever boots a disk (boot sector, both partition tables) lies in its first and last MiB. An
// install wipes both before anything else. It writes the first MiB last, when everything else is on
// stable storage, so that a disk that was written in part never boots. An install that fails leaves
// a wiped disk; it never leaves the old system half overwritten and bootable.
//
// Fetching, decompressing, hashing and writing overlap, over a fixed number of pooled buffers. So
// memory does not grow with the image, besides the window that its compression asks for. Blocks of
// zeros are never skipped: the disk makes them zeros in the cheapest way that it has, or they are
// written.
//
// # First-boot area
//
// What the installed system needs on its first boot lies in one 1 MiB block of the disk, at
// FirstBootOffset: 16 bytes "IRONHERD-BOOT-1\n", the length N of the payload as an unsigned 32-bit
// big-endian integer (at most 128 KiB), 32 bytes SHA-256 of the payload, then N bytes: the payload,
// an encoded agentv1.FirstBoot. The rest of the block is zeros. An image that reaches into the
// block is refused.
//
// Below a root other than "/" a disk may be a regular file: it is written in the same order, but
// not synced, because such a file is somebody's simulation and has no power to lose of its own.
package install
