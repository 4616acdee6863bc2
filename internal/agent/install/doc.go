// Package install writes an operating system image to a disk of the machine.
//
// # Order
//
//	choose the disk → open it for nobody else → may be erased?
//	                → fetch and decode the image's first MiB → does it fit, and boot this machine?
//	                → wipe the first and the last MiB of the disk
//	                → stream the rest of the image → all its digests match
//	                → first-boot area, seed → sync → backup of the table, first MiB → sync
//	                → boot entry of the firmware → the kernel reads the partitions
//
// A disk that holds anything that is known by its signature is only written where the request
// allows it. The newest install of the same machine is no stranger, as long as the disk still has
// the partitions that it was written with.
//
// Whatever boots a disk (boot sector, both partition tables) lies in its first and last MiB. An
// install wipes both before anything else. It writes the first MiB last, when everything else is on
// stable storage, so that a disk that was written in part never boots.
//
// An install that fails before the wipe has touched nothing. So does one whose image turns out by
// its first MiB to be of no use: no such file, a page in its place, another compression, a
// partition table that does not fit. So does one whose image is not compressed and is too large, as
// the server says. One that fails later leaves a wiped disk; it never leaves the old system half
// overwritten and bootable.
//
// One that was given up, because its disk did not answer, does not write what boots when the disk
// answers after all. What it was writing of that at the time, it wipes again, as one does whose
// last writes fail. A machine that loses its power in between may boot it.
//
// When the disk is wiped, there is nothing to go back to. So a server that goes away then, or
// sends a file of another length, as a page of maintenance is, is waited for until the time of the
// install is up, and meanwhile the progress says so. A panic fails the install like any other
// error, because the agent may be the first process of the machine.
//
// Once the disk is wiped, fetching, decompressing, hashing and writing overlap, over a fixed number
// of buffers. What is written to a device does not go through the kernel's cache, and several
// writes are under way at a time. So memory does not grow with the image, besides the window that
// its compression asks for. Blocks of zeros are never skipped: the disk makes them zeros in the
// cheapest way that it has, or they are written.
//
// # First-boot area
//
// What the installed system needs on its first boot lies in one 1 MiB block of the disk, at
// FirstBootOffset: 16 bytes "IRONHERD-BOOT-1\n", the length N of the payload as an unsigned 32-bit
// big-endian integer (at most 128 KiB), 32 bytes SHA-256 of the payload, then N bytes: the payload,
// an encoded agentv1.FirstBoot. The rest of the block is zeros when an install has ended well. An
// image that reaches into the block is refused.
//
// The system that begins its first boot with the area repeats the head of it, the 52 bytes before
// the payload, 64 KiB before the end of the block, where the block is a partition of its own. Then
// no system takes the area over that has begun with another install.
//
// A disk may be made larger later. Then nothing is at FirstBootOffset, and the block is where the
// partition table has it (see Partition table), which stays at the beginning of the disk.
//
// The area stays there when the disk is given to another use. So it has what the disk held when the
// install ended. A later install believes it only while the disk holds that (see stillHolds), the
// first boot while one of the partitions is there (see FirstBootArea).
//
// # Record of an install that has begun
//
// In the second half of the block there are two slots, of 192 KiB at its beginning and its middle,
// in the same form with the magic "IRONHERD-BEGUN1\n" and an encoded agentv1.BegunInstall. A record
// is written when an install begins: before an older install is wiped, or as soon as a stranger is.
// It is removed when everything else is on stable storage. While it is there,
//
//   - later attempts of the same install generation write this disk or none, whatever it is called;
//   - what a power cut has left at both ends of the disk is known, sector by sector, so that it is
//     no stranger, and what somebody has put there since is one.
//
// # Partition table
//
// The backup of an image's GUID partition table moves to the end of the disk, and the first-boot
// area becomes a partition, so that nobody who grows another one later grows it over that. In front
// of it are the last partition, if it is to grow, and the seed for cloud-init, which is a partition
// of 2 MiB. An image that was read from an installed disk has such partitions of the install
// before, known by name, type and size: they are removed. Where neither growth nor a seed was asked
// for, any other table is written as it is, and so is one for sectors of another size than 512
// bytes. A GUID partition table with a partition that ends behind the room for it is refused.
//
// Below a root other than "/" a disk may be a regular file: it is written in the same order, but
// not synced, because such a file is somebody's simulation and has no power to lose of its own.
package install
