// Package inventory finds out what a machine is made of: system, CPUs, memory, disks, network
// interfaces, PCI devices, BMC. Where well-known tools show the same, it agrees with them: lscpu,
// dmidecode, lsblk, smartctl, ip, ipmitool.
//
// It reads sysfs, procfs and SMBIOS, and asks drives and the BMC by ioctl; it never runs a command
// and never parses one's output. It never fails as a whole: what cannot be read stays empty and has
// a line among the warnings, even if a part of it panics. Equal hardware gives equal reports, byte
// by byte, in whatever order the kernel found it; Digest leaves out what changes by itself.
//
// Below a root other than "/" only files are read: no ioctl is made and no address is asked for,
// because the devices there are not those of this kernel.
package inventory
