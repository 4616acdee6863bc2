// Package hardware is what simulated machines are made of: a few server models, and for each
// machine the sysfs and procfs trees, the SMBIOS tables and the disks that a kernel would show.
//
// A machine is a pure function of the world's seed and the machine's slot: same seed, same serial
// numbers. Its trees have the layout of the real ones (devices below /sys/devices, classes as links
// to them), so that whoever reads a real machine's hardware below a root prefix reads a simulated
// one's. Disks are sparse files of the size that sysfs says.
//
// Files that many machines have in common are hard links to one inode. They are read-only by mode,
// as in a real sysfs; whoever writes to one of them in spite of that, as root may, writes to it for
// the whole fleet.
package hardware

// Model is a server model.
type Model struct {
	// Plan is the provider's name for machines of this model.
	Plan             string
	Vendor, Product  string
	Board            string
	FirmwareVendor   string
	FirmwareVersion  string
	FirmwareDate     string
	EFI              bool
	CPU              CPU
	Sockets          int
	DIMM             DIMM
	DIMMs            int
	Disks            []DiskModel
	NIC              NICModel
	SerialPrefix     string
	MACPrefix        string
	DescriptionOfCPU string
}

// CPU is a processor model.
type CPU struct {
	Vendor, Name            string
	Family, Model, Stepping int
	// Cores and threads of one socket.
	Cores, Threads int
	MHz            int
	CacheKiB       int
}

// DIMM is a memory module model.
type DIMM struct {
	Vendor, Part string
	SizeMiB      int
	SpeedMTs     int
	Type         byte // as in SMBIOS
}

// DiskModel is a drive model.
type DiskModel struct {
	Vendor, Model, Firmware string
	// Size in bytes.
	Size       int64
	NVMe       bool
	Rotational bool
	Physical   int // physical sector size in bytes
}

// NICModel is a network card with two ports.
type NICModel struct {
	Driver         string
	Vendor, Device string // PCI IDs
	SpeedMbps      int
}

const (
	dimmDDR4 = 0x1a
)

var (
	ssd480 = DiskModel{Vendor: "ATA", Model: "MTFDDAK480TDT", Firmware: "F003", Size: 480_103_981_056, Physical: 4096}
	ssd240 = DiskModel{Vendor: "ATA", Model: "SSDSCKKB240G8R", Firmware: "DL6R", Size: 240_057_409_536, Physical: 4096}
	ssd960 = DiskModel{Vendor: "ATA", Model: "MZ7LH960HAJR", Firmware: "HXT7", Size: 960_197_124_096, Physical: 4096}
	hdd8t  = DiskModel{Vendor: "SEAGATE", Model: "ST8000NM001A", Firmware: "E004", Size: 8_001_563_222_016, Rotational: true, Physical: 4096}
	nvme3t = DiskModel{Model: "Micron_9300_MTFDHAL3T8TDP", Firmware: "11300DR0", Size: 3_840_755_982_336, NVMe: true, Physical: 4096}
	nvme2x = DiskModel{Model: "INTEL SSDPEKKF256G8L", Firmware: "L08P", Size: 256_060_514_304, NVMe: true, Physical: 512}
)

// models has every model; a slot gets one of them by the seed.
var models = []*Model{
	{
		Plan: "c3.small.x86", Vendor: "Supermicro", Product: "SYS-5019C-MR-PH004", Board: "X11SCM-F",
		FirmwareVendor: "American Megatrends Inc.", FirmwareVersion: "1.9", FirmwareDate: "09/20/2022", EFI: true,
		CPU:     CPU{"GenuineIntel", "Intel(R) Xeon(R) E-2278G CPU @ 3.40GHz", 6, 158, 13, 8, 16, 3400, 16384},
		Sockets: 1, DIMM: DIMM{"Micron", "18ASF2G72AZ-2G6E1", 16384, 2666, dimmDDR4}, DIMMs: 2,
		Disks:        []DiskModel{ssd480, ssd480},
		NIC:          NICModel{"ixgbe", "8086", "1563", 10000},
		SerialPrefix: "C2120", MACPrefix: "3c:ec:ef", DescriptionOfCPU: "Intel Xeon E-2278G 8-Core Processor @ 3.4GHz",
	},
	{
		Plan: "c3.medium.x86", Vendor: "Dell Inc.", Product: "PowerEdge R6515", Board: "0R4CNN",
		FirmwareVendor: "Dell Inc.", FirmwareVersion: "2.7.3", FirmwareDate: "03/30/2022", EFI: true,
		CPU:     CPU{"AuthenticAMD", "AMD EPYC 7402P 24-Core Processor", 23, 49, 0, 24, 48, 2800, 512},
		Sockets: 1, DIMM: DIMM{"Samsung", "M393A1K43DB2-CWE", 8192, 3200, dimmDDR4}, DIMMs: 8,
		Disks:        []DiskModel{ssd240, ssd480},
		NIC:          NICModel{"mlx5_core", "15B3", "1015", 25000},
		SerialPrefix: "7XK", MACPrefix: "b8:ce:f6", DescriptionOfCPU: "AMD EPYC 7402P 24-Core Processor @ 2.8GHz",
	},
	{
		Plan: "m3.large.x86", Vendor: "Dell Inc.", Product: "PowerEdge R6515", Board: "07PXPY",
		FirmwareVendor: "Dell Inc.", FirmwareVersion: "2.10.2", FirmwareDate: "12/19/2022", EFI: true,
		CPU:     CPU{"AuthenticAMD", "AMD EPYC 7502P 32-Core Processor", 23, 49, 0, 32, 64, 2500, 512},
		Sockets: 1, DIMM: DIMM{"SK Hynix", "HMA84GR7CJR4N-XN", 32768, 3200, dimmDDR4}, DIMMs: 8,
		Disks:        []DiskModel{ssd240, nvme3t},
		NIC:          NICModel{"mlx5_core", "15B3", "1015", 25000},
		SerialPrefix: "9PL", MACPrefix: "b8:ce:f6", DescriptionOfCPU: "AMD EPYC 7502P 32-Core Processor @ 2.5GHz",
	},
	{
		Plan: "s3.xlarge.x86", Vendor: "Supermicro", Product: "SSG-6029P-E1CR12L", Board: "X11DPH-T",
		FirmwareVendor: "American Megatrends Inc.", FirmwareVersion: "3.4", FirmwareDate: "11/04/2020",
		CPU:     CPU{"GenuineIntel", "Intel(R) Xeon(R) Silver 4214 CPU @ 2.20GHz", 6, 85, 7, 12, 24, 2200, 16896},
		Sockets: 2, DIMM: DIMM{"Micron", "36ASF4G72PZ-2G9E2", 32768, 2933, dimmDDR4}, DIMMs: 6,
		Disks:        []DiskModel{nvme2x, ssd960, hdd8t},
		NIC:          NICModel{"ixgbe", "8086", "37CE", 10000},
		SerialPrefix: "S3470", MACPrefix: "ac:1f:6b", DescriptionOfCPU: "2 x Intel Xeon Silver 4214 12-Core Processor @ 2.2GHz",
	},
}

// Models lists every model, in a fixed order.
func Models() []*Model { return models }
