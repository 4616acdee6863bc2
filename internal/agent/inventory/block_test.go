package inventory

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// diskAt draws a disk with that place in the device tree; files are below its SCSI or NVMe device,
// and those of the block device itself below "block/".
func diskAt(place, name string, files map[string]string) map[string]string {
	tree := map[string]string{"sys/class/block/" + name: "->../../devices/" + place + "/block/" + name}
	tree["sys/devices/"+place+"/block/"+name+"/device"] = "->../../../" + last(place)
	tree["sys/devices/"+place+"/block/"+name+"/size"] = "2000\n"
	for path, content := range files {
		tree["sys/devices/"+place+"/"+path] = content
	}
	return tree
}

func last(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return path[i+1:]
		}
	}
	return path
}

func TestDiskShapes(t *testing.T) {
	t.Parallel()
	informationPage := string(append([]byte{0, 0x89, 2, 0x38}, make([]byte, 56)...)) +
		string(identify("Samsung SSD 860 EVO 500GB", "S3Z1NB0K", "RVT01B6Q", 0x4020))
	const (
		ata  = "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0"
		sas  = "pci0000:00/0000:02:00.0/host1/port-1:0/end_device-1:0/target1:0:0/1:0:0:0"
		sas2 = "pci0000:00/0000:02:00.0/host1/port-1:1/end_device-1:1/target1:0:1/1:0:1:0"
	)
	seagate := map[string]string{"vendor": "SEAGATE \n", "model": "ST4000NM0025\n", "rev": "N004\n", "wwid": "naa.5000c500a1b2c3d4\n", "vpd_pg80": "\x00\x80\x00\x04ZC11"}
	seagateDisk := func() *agentv1.BlockDevice {
		return &agentv1.BlockDevice{
			Name: "sda", Vendor: "SEAGATE", Model: "ST4000NM0025", Serial: "ZC11", Wwn: "0x5000c500a1b2c3d4", Firmware: "N004", SizeBytes: 1024000, Protocol: "sas",
		}
	}
	twoPaths := seagateDisk()
	twoPaths.OtherPaths = []string{"sdb"}
	other := seagateDisk()
	other.Name, other.Serial = "sdb", "ZC22"
	otherFiles := map[string]string{"vendor": "SEAGATE\n", "model": "ST4000NM0025\n", "rev": "N004\n", "wwid": "naa.5000c500a1b2c3d4\n", "vpd_pg80": "\x00\x80\x00\x04ZC22"}
	for name, test := range map[string]struct {
		trees []map[string]string
		want  []*agentv1.BlockDevice
	}{
		"ATA: SCSI cuts the model off, and the firmware": {
			[]map[string]string{diskAt(ata, "sda", map[string]string{
				"vendor": "ATA     \n", "model": "Samsung SSD 860 \n", "rev": "1B6Q\n", "vpd_pg80": "\x00\x80\x00\x08S3Z1NB0K", "vpd_pg89": informationPage,
			})},
			[]*agentv1.BlockDevice{{
				Name: "sda", Vendor: "ATA", Model: "Samsung SSD 860 EVO 500GB", Serial: "S3Z1NB0K", Firmware: "RVT01B6Q", SizeBytes: 1024000, Protocol: "sata",
			}},
		},
		"ATA without the page": {
			[]map[string]string{diskAt(ata, "sda", map[string]string{"vendor": "ATA\n", "model": "Samsung SSD 860 \n", "rev": "1B6Q\n", "vpd_pg89": "\x00\x89"})},
			[]*agentv1.BlockDevice{{Name: "sda", Vendor: "ATA", Model: "Samsung SSD 860", Firmware: "1B6Q", SizeBytes: 1024000, Protocol: "sata"}},
		},
		"NVMe": {
			[]map[string]string{{
				"sys/class/block/nvme0n1/size": "2000\n", "sys/class/block/nvme0n1/wwid": "eui.0025388b01b2c3d4\n",
				"sys/class/block/nvme0n1/device/model": "SAMSUNG MZVL2512\n", "sys/class/block/nvme0n1/device/firmware_rev": "GXA7801Q\n",
			}},
			[]*agentv1.BlockDevice{{Name: "nvme0n1", Model: "SAMSUNG MZVL2512", Wwn: "eui.0025388b01b2c3d4", Firmware: "GXA7801Q", SizeBytes: 1024000, Protocol: "nvme"}},
		},
		"a name of zeros is none": {
			[]map[string]string{{"sys/class/block/nvme0n1/size": "2000\n", "sys/class/block/nvme0n1/wwid": "eui.0000000000000000\n", "sys/class/block/nvme0n1/device/model": "M\n"}},
			[]*agentv1.BlockDevice{{Name: "nvme0n1", Model: "M", SizeBytes: 1024000, Protocol: "nvme"}},
		},
		"two paths to one disk":                  {[]map[string]string{diskAt(sas, "sda", seagate), diskAt(sas2, "sdb", seagate)}, []*agentv1.BlockDevice{twoPaths}},
		"two disks that give themselves one WWN": {[]map[string]string{diskAt(sas, "sda", seagate), diskAt(sas2, "sdb", otherFiles)}, []*agentv1.BlockDevice{seagateDisk(), other}},
		"two disks that name nothing": {
			[]map[string]string{diskAt(sas, "sda", nil), diskAt(sas2, "sdb", nil)},
			[]*agentv1.BlockDevice{{Name: "sda", SizeBytes: 1024000, Protocol: "sas"}, {Name: "sdb", SizeBytes: 1024000, Protocol: "sas"}},
		},
		"over a network": {
			[]map[string]string{
				diskAt("platform/host6/session1/target6:0:0/6:0:0:0", "sda", nil),
				diskAt("pci0000:00/0000:03:00.0/host7/rport-7:0-0/target7:0:0/7:0:0:0", "sdb", nil),
			},
			[]*agentv1.BlockDevice{{Name: "sda", SizeBytes: 1024000, Protocol: "iscsi"}, {Name: "sdb", SizeBytes: 1024000, Protocol: "fc"}},
		},
		"NVMe over a network": {
			[]map[string]string{{
				"sys/class/block/nvme0n1/size": "2000\n", "sys/class/block/nvme0n1/device/transport": "tcp\n",
				"sys/class/block/nvme1n1/size": "2000\n", "sys/class/block/nvme1n1/device/nvme1/transport": "fc\n",
				"sys/class/block/nvme2n1/size": "2000\n", "sys/class/block/nvme2n1/device/transport": "pcie\n",
			}},
			[]*agentv1.BlockDevice{
				{Name: "nvme0n1", SizeBytes: 1024000, Protocol: "nvme-tcp"},
				{Name: "nvme1n1", SizeBytes: 1024000, Protocol: "nvme-fc"},
				{Name: "nvme2n1", SizeBytes: 1024000, Protocol: "nvme"},
			},
		},
		"a memory card, and flash memory on the board": {
			[]map[string]string{{
				"sys/class/block/mmcblk0/size": "2000\n", "sys/class/block/mmcblk0/device/type": "SD\n", "sys/class/block/mmcblk0/device/serial": "0x1234\n",
				"sys/class/block/mmcblk1/size": "2000\n", "sys/class/block/mmcblk1/device/type": "MMC\n",
			}},
			[]*agentv1.BlockDevice{
				{Name: "mmcblk0", Serial: "0x1234", SizeBytes: 1024000, Protocol: "sd"}, {Name: "mmcblk1", SizeBytes: 1024000, Protocol: "mmc"},
			},
		},
		"persistent memory is no disk": {
			[]map[string]string{
				diskAt("LNXSYSTM:00/ndbus0/region0/namespace0.0", "pmem0", nil), diskAt("LNXSYSTM:00/ndbus0/region1/btt1.0", "pmem1s", nil),
			}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := map[string]string{}
			for _, some := range test.trees {
				for path, content := range some {
					files[path] = content
				}
			}
			got := Collect(tree(t, files)).GetBlockDevices()
			if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestDisksHaveTheirWholeModel: an install chooses a disk by the model that the report has shown,
// also where the kernel knows only its beginning.
func TestDisksHaveTheirWholeModel(t *testing.T) {
	t.Parallel()
	page := string(append([]byte{0, 0x89, 2, 0x38}, make([]byte, 56)...)) + string(identify("Samsung SSD 860 EVO 500GB", "S3Z1NB0K", "RVT01B6Q", 0x4020))
	files := map[string]string{"sys/class/block/nvme0n1/size": "2000\n", "sys/class/block/nvme0n1/device/model": "M\n"}
	for name, place := range map[string]string{"sda": "ata1", "sdb": "ata2"} {
		device := map[string]string{"vendor": "ATA\n", "model": "Samsung SSD 860 \n"}
		if name == "sdb" {
			device["vpd_pg89"] = page
		}
		for path, text := range diskAt("pci0000:00/"+place+"/host0/target0:0:0/0:0:0:0", name, device) {
			files[path] = text
		}
	}
	identity, err := parseInformationPage([]byte(page))
	if err != nil {
		t.Fatal(err)
	}
	root := tree(t, files)
	for _, live := range []bool{true, false} {
		var asked []string
		p := &probe{root: root, live: live}
		list := p.completeDisks(&drives{}, drivesLimit, func(disk *agentv1.BlockDevice) error {
			asked = append(asked, disk.GetName())
			identity.complete(disk)
			return nil
		})
		if live && (len(asked) != 1 || asked[0] != "sda") || !live && len(asked) > 0 || len(list) != 3 {
			t.Errorf("of %d disks, %v were asked", len(list), asked)
		}
		for _, disk := range list {
			if whole := disk.GetModel() == "Samsung SSD 860 EVO 500GB"; whole != (disk.GetName() == "sdb" || live && disk.GetName() == "sda") {
				t.Errorf("%s is of the model %q", disk.GetName(), disk.GetModel())
			}
		}
	}
}

// TestAPortForPluggingMakesNoDiskRemovable: Linux calls a disk removable whose SATA port is made
// for plugging under power. A server with such bays had no disk that could be its root disk.
func TestAPortForPluggingMakesNoDiskRemovable(t *testing.T) {
	t.Parallel()
	const (
		port = "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0"
		usb  = "pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.0/host2/target2:0:0/2:0:0:0"
	)
	const removableMedium = 0x80
	for name, test := range map[string]struct {
		place string
		word0 byte
		page  bool
		want  bool
	}{
		"a disk in a bay":                     {port, 0, true, false},
		"a drive whose medium can be removed": {port, removableMedium, true, true},
		"a drive that has not told":           {port, 0, false, true},
		"a disk behind USB":                   {usb, 0, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := map[string]string{"vendor": "ATA     \n", "block/sda/removable": "1\n"}
			if test.page {
				identity := identify("ST4000NM0035-1V4107", "ZC11", "TN05", 0)
				identity[0] = test.word0
				files["vpd_pg89"] = string(append(append([]byte{0, 0x89, 2, 0x38}, make([]byte, 56)...), identity...))
			}
			disks := Collect(tree(t, diskAt(test.place, "sda", files))).GetBlockDevices()
			if len(disks) != 1 || disks[0].GetRemovable() != test.want {
				t.Errorf("%v: want removable %t", disks, test.want)
			}
		})
	}
}
