package inventory

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

func TestSecureBootAndTPM(t *testing.T) {
	t.Parallel()
	const variable, tpm = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", "sys/class/tpm/tpm0/"
	for name, test := range map[string]struct {
		files map[string]string
		boot  agentv1.SecureBoot
		tpm   string
	}{
		"neither":                 {map[string]string{"x": ""}, agentv1.SecureBoot_SECURE_BOOT_UNSPECIFIED, ""},
		"enabled, TPM 2.0":        {map[string]string{variable: "\x06\x00\x00\x00\x01", tpm + "tpm_version_major": "2\n"}, agentv1.SecureBoot_SECURE_BOOT_ENABLED, "2.0"},
		"disabled, TPM 1.2":       {map[string]string{variable: "\x06\x00\x00\x00\x00", tpm + "tpm_version_major": "1\n"}, agentv1.SecureBoot_SECURE_BOOT_DISABLED, "1.2"},
		"an old kernel":           {map[string]string{tpm + "device/caps": "Manufacturer: 0x49465800\nTCG version: 1.2\nFirmware version: 4.32\n"}, agentv1.SecureBoot_SECURE_BOOT_UNSPECIFIED, "1.2"},
		"a TPM that says nothing": {map[string]string{tpm + "uevent": ""}, agentv1.SecureBoot_SECURE_BOOT_UNSPECIFIED, "unknown"},
		"a variable cut short":    {map[string]string{variable: "\x06\x00"}, agentv1.SecureBoot_SECURE_BOOT_UNSPECIFIED, ""},
	} {
		got := Collect(tree(t, test.files)).GetSystem()
		if got.GetSecureBoot() != test.boot || got.GetTpmVersion() != test.tpm {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestChassis(t *testing.T) {
	t.Parallel()
	got := withTables(t, structure(3, 13, map[int][]byte{4: {1}, 7: {2}, 8: {3}}, "Maker", "CH1", "rack 7")).GetSystem()
	if got.GetChassisSerial() != "CH1" || got.GetChassisAssetTag() != "rack 7" {
		t.Errorf("%v", got)
	}
	got = Collect(tree(t, map[string]string{"sys/class/dmi/id/chassis_serial": "CH2\n", "sys/class/dmi/id/chassis_asset_tag": "rack 8\n"})).GetSystem()
	if got.GetChassisSerial() != "CH2" || got.GetChassisAssetTag() != "rack 8" {
		t.Errorf("without tables: %v", got)
	}
}

func TestBMC(t *testing.T) {
	t.Parallel()
	structures := map[string]string{
		"sys/firmware/dmi/tables/smbios_entry_point": entryPoint,
		"sys/firmware/dmi/tables/DMI":                string(structure(38, 18, map[int][]byte{4: {1}, 5: {0x20}})),
	}
	const dir = "sys/class/ipmi/ipmi0/device/bmc/"
	driver := map[string]string{dir + "ipmi_version": "2.0\n", dir + "firmware_revision": "1.73\n", dir + "manufacturer_id": "0x0002a2\n", dir + "product_id": "0x0100\n"}
	both := maps.Clone(structures)
	both["sys/class/ipmi/ipmi0/dev"] = "243:0\n"
	for name, test := range map[string]struct {
		files map[string]string
		want  *agentv1.Bmc
	}{
		"none":                       {map[string]string{"x": ""}, nil},
		"SMBIOS alone":               {structures, &agentv1.Bmc{IpmiVersion: "2.0"}},
		"the driver":                 {driver, &agentv1.Bmc{IpmiVersion: "2.0", FirmwareVersion: "1.73", ManufacturerId: "0x0002a2", ProductId: "0x0100"}},
		"a BMC that does not answer": {both, &agentv1.Bmc{IpmiVersion: "2.0"}},
	} {
		if got := Collect(tree(t, test.files)).GetBmc(); !proto.Equal(got, test.want) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestNUMA(t *testing.T) {
	t.Parallel()
	const dir = "sys/devices/system/node/"
	got := Collect(tree(t, map[string]string{
		dir + "node0/cpulist": "0-23,48-71\n", dir + "node0/meminfo": "Node 0 MemTotal:       131072 kB\nNode 0 MemFree:  5 kB\n",
		dir + "node10/cpulist": "\n", dir + "node10/meminfo": "Node 10 MemTotal:       1024 kB\n",
		dir + "node2/cpulist": "24-47,72-95\n", dir + "online": "0,2,10\n", dir + "power/control": "auto\n",
	})).GetNumaNodes()
	want := []*agentv1.NumaNode{{Cpus: "0-23,48-71", MemoryBytes: 128 << 20}, {Node: 2, Cpus: "24-47,72-95"}, {Node: 10, MemoryBytes: 1 << 20}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

// Firmware that numbers threads in turn over the sockets makes lists without ranges. One that is
// too long ends in an ellipsis, and not in a number that is another node's.
func TestNUMAInTurn(t *testing.T) {
	t.Parallel()
	numbers := make([]string, 96)
	for n := range numbers {
		numbers[n] = fmt.Sprint(2 * n)
	}
	all := strings.Join(numbers, ",")
	nodes := Collect(tree(t, map[string]string{"sys/devices/system/node/node0/cpulist": all + "\n"})).GetNumaNodes()
	if len(nodes) != 1 {
		t.Fatalf("nodes: %v", nodes)
	}
	whole, cut := strings.CutSuffix(nodes[0].GetCpus(), ",…")
	if !cut || !strings.HasPrefix(all, whole+",") || len(whole) < 200 {
		t.Errorf("threads: %q", nodes[0].GetCpus())
	}
}

func TestPCI(t *testing.T) {
	t.Parallel()
	files := map[string]string{"sys/bus/pci/drivers/ice/bind": "", "proc/driver/nvidia/gpus/0000:41:00.0/information": "Model: \t\t NVIDIA H100 PCIe\nIRQ:   \t\t 120\n"}
	device := func(address, class, vendor, device string, more map[string]string) {
		dir := "sys/bus/pci/devices/" + address + "/"
		files[dir+"class"], files[dir+"vendor"], files[dir+"device"] = class+"\n", vendor+"\n", device+"\n"
		for path, content := range more {
			files[dir+path] = content
		}
	}
	device("0000:00:00.0", "0x060000", "0x8086", "0x2020", nil) // host bridge
	device("0000:00:17.0", "0x010601", "0x8086", "0xa182", map[string]string{"numa_node": "-1\n"})
	device("0000:03:00.0", "0x030000", "0x1a03", "0x2000", nil) // ASPEED
	device("0000:04:00.0", "0x030000", "0x1002", "0x515e", nil) // ES1000
	device("0000:3b:00.0", "0x020000", "0x8086", "0x159b", map[string]string{
		"numa_node": "1\n", "subsystem_vendor": "0x15d9\n", "subsystem_device": "0x0933\n", "driver": "->../../drivers/ice",
	})
	// a virtual function
	device("0000:3b:01.0", "0x020000", "0x8086", "0x1889", map[string]string{"physfn/class": "0x020000\n"})
	device("0000:41:00.0", "0x030200", "0x10de", "0x2331", nil)
	device("0000:42:00.0", "0x120000", "0x1002", "0x74a1", map[string]string{"product_name": "AMD Instinct MI300X\n"})
	device("0000:43:00.0", "0x120000", "0x1da3", "0x1020", nil)
	device("0000:44:00.0", "0x0b4000", "0x8086", "0x4940", nil)
	device("0000:45:00.0", "nonsense", "", "", nil)
	want := []*agentv1.PciDevice{
		{Address: "0000:00:17.0", Kind: "storage", Id: "8086:a182", NumaNode: -1},
		{Address: "0000:03:00.0", Kind: "display", Id: "1a03:2000", NumaNode: -1},
		{Address: "0000:04:00.0", Kind: "display", Id: "1002:515e", NumaNode: -1},
		{Address: "0000:3b:00.0", Kind: "network", Id: "8086:159b", SubsystemId: "15d9:0933", Driver: "ice", NumaNode: 1},
		{Address: "0000:41:00.0", Kind: "gpu", Id: "10de:2331", NumaNode: -1, Model: "NVIDIA H100 PCIe"},
		{Address: "0000:42:00.0", Kind: "gpu", Id: "1002:74a1", NumaNode: -1, Model: "AMD Instinct MI300X"},
		{Address: "0000:43:00.0", Kind: "accelerator", Id: "1da3:1020", NumaNode: -1},
		{Address: "0000:44:00.0", Kind: "coprocessor", Id: "8086:4940", NumaNode: -1},
	}
	if diff := cmp.Diff(want, Collect(tree(t, files)).GetPciDevices(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}
