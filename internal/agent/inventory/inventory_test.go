package inventory

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// tree makes files and, where the content starts with "->", symbolic links.
func tree(tb testing.TB, files map[string]string) string {
	tb.Helper()
	root := tb.TempDir()
	for path, content := range files {
		full := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			tb.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "->"); ok {
			err = os.Symlink(target, full)
		} else {
			err = os.WriteFile(full, []byte(content), 0o600)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	return root
}

func server() map[string]string {
	const (
		ata  = "sys/devices/pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/"
		nvme = "sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/"
		nic  = "sys/devices/pci0000:00/0000:02:00.0/net/eth0/"
	)
	return map[string]string{
		"proc/cpuinfo":                 cpuInfo,
		"proc/meminfo":                 "MemTotal:       131072 kB\nMemFree: 5 kB\n",
		"proc/sys/kernel/osrelease":    "6.1.0-test\n",
		"sys/firmware/efi/fw_platform": "64\n",

		"sys/firmware/dmi/tables/smbios_entry_point": entryPoint,
		"sys/firmware/dmi/tables/DMI":                string(smbiosTable()),

		ata + "vendor":                              "ATA     \n",
		ata + "model":                               "DISK 1          \n",
		ata + "wwid":                                "naa.5000c500a1b2c3d4\n",
		ata + "vpd_pg80":                            "\x00\x80\x00\x08  SER123",
		ata + "block/sda/size":                      "2000\n",
		ata + "block/sda/ro":                        "0\n",
		ata + "block/sda/removable":                 "0\n",
		ata + "block/sda/queue/rotational":          "1\n",
		ata + "block/sda/queue/logical_block_size":  "512\n",
		ata + "block/sda/queue/physical_block_size": "4096\n",
		ata + "block/sda/device":                    "->../../../0:0:0:0",
		ata + "block/sda/sda1/partition":            "1\n",
		ata + "block/sda/sda1/size":                 "100\n",
		"sys/class/block/sda":                       "->../../" + strings.TrimPrefix(ata, "sys/") + "block/sda",
		"sys/class/block/sda1":                      "->../../" + strings.TrimPrefix(ata, "sys/") + "block/sda/sda1",

		nvme + "model":              "FAST 2\n",
		nvme + "serial":             "NV1\n",
		nvme + "nvme0n1/size":       "4000\n",
		nvme + "nvme0n1/wwid":       "eui.0011\n",
		nvme + "nvme0n1/device":     "->../../nvme0",
		nvme + "nvme0c0n1/size":     "4000\n",
		nvme + "nvme0c0n1/hidden":   "1\n",
		nvme + "nvme0c0n1/device":   "->../../nvme0",
		nvme + "nvme0n10/size":      "8\n",
		nvme + "nvme0n10/device":    "->../../nvme0",
		"sys/class/block/nvme0n1":   "->../../" + strings.TrimPrefix(nvme, "sys/") + "nvme0n1",
		"sys/class/block/nvme0n10":  "->../../" + strings.TrimPrefix(nvme, "sys/") + "nvme0n10",
		"sys/class/block/nvme0c0n1": "->../../" + strings.TrimPrefix(nvme, "sys/") + "nvme0c0n1",

		"sys/class/block/vda/size":          "6\n",
		"sys/class/block/vda/serial":        "virt\n",
		"sys/class/block/vda/ro":            "1\n",
		"sys/class/block/vda/device/vendor": "0x1af4\n",
		"sys/class/block/loop0/size":        "5\n",
		"sys/class/block/loop0/device/x":    "\n",
		"sys/class/block/dm-0/size":         "5\n",
		"sys/class/block/sdz/size":          "0\n",
		"sys/class/block/sdz/device/x":      "\n",

		nic + "address": "00:11:22:33:44:55\n",
		nic + "carrier": "1\n",
		nic + "speed":   "25000\n",
		nic + "mtu":     "9000\n",
		nic + "device":  "->../../../0000:02:00.0",
		"sys/devices/pci0000:00/0000:02:00.0/driver":   "->../../../bus/pci/drivers/mlx5_core",
		"sys/bus/pci/drivers/mlx5_core/bind":           "",
		"sys/class/net/eth0":                           "->../../" + strings.TrimPrefix(nic, "sys/"),
		"sys/class/net/lo/address":                     "00:00:00:00:00:00\n",
		"sys/class/net/eth1/device/uevent":             "DRIVER=igb\nPCI_SLOT_NAME=0000:03:00.0\n",
		"sys/class/net/eth1/address":                   "00:11:22:33:44:66\n",
		"sys/class/net/eth1/speed":                     "-1\n",
		"sys/class/net/eth1/bonding_slave/perm_hwaddr": "00:11:22:33:44:77\n",
	}
}

func serverReport() *agentv1.HardwareReport {
	module := &agentv1.MemoryModule{
		Locator: "DIMM A1", Vendor: "Memories", PartNumber: "P1", Serial: "S1", SizeBytes: 128 << 30, SpeedMts: 70000, Type: "DDR4",
	}
	small := proto.CloneOf(module)
	small.SizeBytes = 16 << 30
	return &agentv1.HardwareReport{
		System: &agentv1.System{
			Vendor: "Vendor", Product: "Server 9", Serial: "SN1", Uuid: "03020100-0504-0706-0809-0a0b0c0d0e0f",
			FirmwareVendor: "Maker", FirmwareVersion: "1.2", FirmwareDate: "01/02/2026", Efi: true,
			BoardVendor: "Boards", BoardProduct: "B1", Kernel: "6.1.0-test", Architecture: runtime.GOARCH,
		},
		Cpus: []*agentv1.Cpu{
			{Vendor: "GenuineIntel", Model: "Intel(R) Xeon(R) Gold 6130", Family: 6, ModelNumber: 85, Stepping: 4, Cores: 2, Threads: 3},
			{Vendor: "GenuineIntel", Model: "Intel(R) Xeon(R) Gold 6130", Family: 6, ModelNumber: 85, Stepping: 4, Socket: 1, Cores: 1, Threads: 1},
		},
		Memory: &agentv1.Memory{InstalledBytes: 144 << 30, UsableBytes: 128 << 20, Modules: []*agentv1.MemoryModule{module, small}},
		BlockDevices: []*agentv1.BlockDevice{
			{Name: "nvme0n1", Model: "FAST 2", Serial: "NV1", Wwn: "eui.0011", SizeBytes: 4000 * 512, Protocol: "nvme"},
			{Name: "nvme0n10", Model: "FAST 2", Serial: "NV1", SizeBytes: 8 * 512, Protocol: "nvme"},
			{
				Name: "sda", Vendor: "ATA", Model: "DISK 1", Serial: "SER123", Wwn: "0x5000c500a1b2c3d4", SizeBytes: 2000 * 512,
				LogicalSectorBytes: 512, PhysicalSectorBytes: 4096, Rotational: true, Protocol: "sata",
			},
			{Name: "vda", Serial: "virt", SizeBytes: 6 * 512, ReadOnly: true, Protocol: "virtio"},
		},
		NetworkInterfaces: []*agentv1.NetworkInterface{
			{Name: "eth0", Mac: "00:11:22:33:44:55", Driver: "mlx5_core", Link: true, SpeedMbps: 25000, Mtu: 9000, BusId: "0000:02:00.0"},
			{Name: "eth1", Mac: "00:11:22:33:44:77", PermanentMac: "00:11:22:33:44:77", Driver: "igb", BusId: "0000:03:00.0"},
		},
	}
}

func TestCollectServer(t *testing.T) {
	t.Parallel()
	report := Collect(tree(t, server()))
	if diff := cmp.Diff(serverReport(), report, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if _, err := proto.Marshal(report); err != nil {
		t.Error(err)
	}
}

func TestCollectWithoutTables(t *testing.T) {
	t.Parallel()
	files := server()
	delete(files, "sys/firmware/dmi/tables/DMI")
	files["sys/class/dmi/id/sys_vendor"] = "Fallback\n"
	files["sys/class/dmi/id/board_name"] = "Board\n"
	report := Collect(tree(t, files))
	if report.GetSystem().GetVendor() != "Fallback" || report.GetSystem().GetBoardProduct() != "Board" {
		t.Errorf("system: %v", report.GetSystem())
	}
	if want := []string{"the SMBIOS tables are not there: memory modules are unknown"}; !slices.Equal(report.GetWarnings(), want) {
		t.Errorf("warnings: %q", report.GetWarnings())
	}
}

func TestCollectNothing(t *testing.T) {
	t.Parallel()
	report := Collect(t.TempDir())
	for _, want := range []string{"SMBIOS", "cpuinfo", "meminfo", "block devices", "network interfaces", "release"} {
		if !strings.Contains(strings.Join(report.GetWarnings(), "\n"), want) {
			t.Errorf("no warning about %s: %q", want, report.GetWarnings())
		}
	}
	if len(report.GetWarnings()) != 6 {
		t.Errorf("warnings: %q", report.GetWarnings())
	}
}

func TestDigest(t *testing.T) {
	t.Parallel()
	report := serverReport()
	report.BlockDevices[0].Health = &agentv1.Health{Passed: true, TemperatureCelsius: 40, PowerOnHours: 1, PercentageUsed: 2}
	before := Digest(report)
	report.BlockDevices[0].Health.TemperatureCelsius = 50
	report.BlockDevices[0].Health.PowerOnHours = 2
	if Digest(report) != before {
		t.Error("the digest depends on what changes by itself")
	}
	if report.GetBlockDevices()[0].GetHealth().GetTemperatureCelsius() != 50 {
		t.Error("the report was changed")
	}
	report.BlockDevices[0].Health.PercentageUsed = 3
	if Digest(report) == before {
		t.Error("the digest does not depend on wear")
	}
}

// The real machine: what is reported agrees with what the standard library and the kernel say in
// other ways.
func TestCollectHere(t *testing.T) {
	t.Parallel()
	report := Collect("/")
	threads := int32(0)
	for _, cpu := range report.GetCpus() {
		threads += cpu.GetThreads()
		if cpu.GetCores() < 1 || cpu.GetCores() > cpu.GetThreads() || cpu.GetVendor() == "" {
			t.Errorf("cpu: %v", cpu)
		}
	}
	if int(threads) < runtime.NumCPU() {
		t.Errorf("%d threads, and the process may use %d", threads, runtime.NumCPU())
	}
	if present, err := os.ReadFile("/sys/devices/system/cpu/present"); err == nil && int(threads+report.GetOfflineThreads()) != len(parseList(string(present))) {
		t.Errorf("%d threads online and %d offline, and %q are present", threads, report.GetOfflineThreads(), string(present))
	}
	if report.GetMemory().GetUsableBytes() < 64<<20 {
		t.Errorf("memory: %v", report.GetMemory())
	}
	for _, disk := range report.GetBlockDevices() {
		if disk.GetSizeBytes() <= 0 || disk.GetLogicalSectorBytes() < 512 {
			t.Errorf("disk: %v", disk)
		}
	}
	for _, nic := range report.GetNetworkInterfaces() {
		own, err := os.ReadFile("/sys/class/net/" + nic.GetName() + "/addr_assign_type")
		if err == nil && string(own) == "0\n" && nic.GetPermanentMac() != "" && nic.GetPermanentMac() != nic.GetMac() {
			t.Errorf("the address of %s is its own, and the driver says %s", nic.GetMac(), nic.GetPermanentMac())
		}
	}
	if kernel, err := os.ReadFile("/proc/version"); err == nil && !strings.Contains(string(kernel), report.GetSystem().GetKernel()) {
		t.Errorf("kernel %q", report.GetSystem().GetKernel())
	}
	if again := Collect("/"); Digest(again) != Digest(report) {
		t.Errorf("two reports differ: %s", cmp.Diff(report, again, protocmp.Transform()))
	}
}

func TestNatural(t *testing.T) {
	t.Parallel()
	names := []string{"sdaa", "nvme10n1", "sdb", "nvme2n1", "sda", "nvme2n10", "nvme2n2"}
	slices.SortFunc(names, compareNatural)
	if want := []string{"nvme2n1", "nvme2n2", "nvme2n10", "nvme10n1", "sda", "sdb", "sdaa"}; !slices.Equal(names, want) {
		t.Errorf("%q", names)
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"  a b\n": "a b", "a\x00b\x1b[31m": "ab[31m", "\xff\xfe": "", strings.Repeat("ä", 200): strings.Repeat("ä", 128),
	} {
		if got := clean(in); got != want {
			t.Errorf("clean(%q) = %q", in, got)
		}
	}
}

func FuzzMeminfo(f *testing.F) {
	f.Add([]byte("MemTotal:  5 kB\n"))
	f.Add([]byte("MemTotal: 99999999999999999999 kB"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if parseMemTotal(data) < 0 {
			t.Error("negative")
		}
	})
}

func BenchmarkCollect(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Collect("/")
	}
}
