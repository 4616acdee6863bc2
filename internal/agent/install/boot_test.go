package install

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// withoutESP is an image with a GUID partition table, and nothing that EFI boots.
func withoutESP(t *testing.T) []byte {
	t.Helper()
	return imageOf(t, 4*mebibyte, "label: gpt\nstart=2048, size=2048, type=L, name=root\n", func(string) {})
}

// withMBR is an image with a partition of that type in its MBR, and code in its boot sector.
func withMBR(t *testing.T, kind string) []byte {
	t.Helper()
	script := "label: dos\nlabel-id: 0x04030201\n\nstart=2048, size=2048, type=83\nstart=4096, size=2048, type=" + kind + "\n"
	image := imageOf(t, 4*mebibyte, script, func(string) {})
	image[0] = 0xeb
	return image
}

// TestImageThatTheFirmwareCannotBoot: a machine that was booted by EFI is not written with an image
// that has nothing for EFI. By BIOS it cannot be told as surely, so there is a warning at most.
func TestImageThatTheFirmwareCannotBoot(t *testing.T) {
	t.Parallel()
	const refused = "the machine boots by EFI, and the image has no EFI system partition"
	good := partitioned(t)
	damaged := bytes.Clone(good)
	damaged[512+40] ^= 0xff
	coded := bytes.Clone(good)
	coded[0] = 0xeb
	for name, test := range map[string]struct {
		image        []byte
		efi, warning string
	}{
		"ESP":                    {coded, "", ""},
		"ESP, no boot code":      {good, "", "the machine seems to boot by BIOS, and the image boots by EFI alone: its boot sector has no code"},
		"ESP, sectors of 4096":   {forLargeSectors(good), "", "the machine seems to boot by BIOS, and the image boots by EFI alone: its boot sector has no code"},
		"ESP in an MBR":          {withMBR(t, "ef"), "", ""},
		"no ESP":                 {withoutESP(t), refused, ""},
		"no ESP in an MBR":       {withMBR(t, "83"), refused, ""},
		"no table":               {testImage(1, 3*mebibyte), refused, ""},
		"a table that is broken": {damaged, "the machine boots by EFI, and no EFI system partition can be found in the image: the image's partition table is damaged", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, options := bigMachine(t)
			report := Run(t.Context(), requestFor(serveBytes(t, test.image), test.image), options)
			var warnings []string
			if test.warning != "" {
				warnings = []string{test.warning}
			}
			if !report.GetOk() || !slices.Equal(report.GetWarnings(), warnings) {
				t.Errorf("by BIOS: %v", report)
			}
			m, options := bigMachine(t)
			if err := os.MkdirAll(filepath.Join(m.root, efiDir), 0o755); err != nil {
				t.Fatal(err)
			}
			report = Run(t.Context(), requestFor(serveBytes(t, test.image), test.image), options)
			if test.efi == "" {
				if !report.GetOk() || len(report.GetWarnings()) > 0 || !strings.Contains(variable(t, m.root, "Boot0000"), string(utf16Text(efiName))) {
					t.Errorf("by EFI: %v", report)
				}
				return
			}
			if report.GetOk() || !strings.HasPrefix(report.GetError(), test.efi) || report.GetDisk() != "" {
				t.Errorf("by EFI: %v", report)
			}
			disk, err := os.ReadFile(m.disk)
			if err != nil || !bytes.Equal(disk, oldData(len(disk))) {
				t.Errorf("the disk was touched: %v", err)
			}
		})
	}
}

// TestAnotherDiskMayBoot: history warns of disks that the firmware may boot instead.
func TestAnotherDiskMayBoot(t *testing.T) {
	t.Parallel()
	image := partitioned(t)
	image[0] = 0xeb
	other := bytes.Clone(image)
	other[1024+16] ^= 0xff // the GUID of the other EFI system partition
	boots := bytes.Clone(other)
	binary.LittleEndian.PutUint32(boots[512+88:], crc32.ChecksumIEEE(boots[1024:1024+128*128]))
	binary.LittleEndian.PutUint32(boots[512+16:], headerSum(boots[512:512+92]))
	const unreached = "no boot entry was made, because the kernel cannot reach the firmware's variables: the firmware decides by itself which disk it boots"
	for name, test := range map[string]struct {
		other    []byte
		efi, old bool
		want     string
	}{
		"by BIOS, a data disk":                    {make([]byte, mebibyte), false, false, ""},
		"by BIOS, a disk that boots":              {boots, false, false, "the firmware may boot another disk than /dev/sda, by the boot sector of /dev/sdb"},
		"by EFI, the same partition":              {image, true, false, "the firmware may boot another disk than /dev/sda, by the EFI system partition of /dev/sdb"},
		"by EFI, another one":                     {boots, true, false, ""},
		"by EFI, another one, and no boot entry":  {boots, true, true, unreached + "\nthe firmware may boot another disk than /dev/sda, by the EFI system partition of /dev/sdb"},
		"by EFI, a data disk, and no boot entry":  {make([]byte, mebibyte), true, true, unreached},
		"by EFI, no EFI system partition on that": {withMBR(t, "83"), true, true, unreached},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, options := bigMachine(t)
			options.Disks[0].Serial = "S1"
			options.Disks = append(options.Disks, &agentv1.BlockDevice{Name: "sdb", Serial: "S2", SizeBytes: 64 * mebibyte})
			if err := os.WriteFile(filepath.Join(m.root, "dev/sdb"), test.other, 0o600); err != nil {
				t.Fatal(err)
			}
			dir := efiDir
			if test.old { // the firmware's variables cannot be had
				dir = filepath.Dir(efiDir)
			}
			if test.efi {
				if err := os.MkdirAll(filepath.Join(m.root, dir), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			request := requestFor(serveBytes(t, image), image)
			request.RootDisk = &agentv1.DiskSelector{Serial: "S1"}
			report := Run(t.Context(), request, options)
			if !report.GetOk() || strings.Join(report.GetWarnings(), "\n") != test.want {
				t.Errorf("report: %v", report)
			}
		})
	}
}

// TestManyDisksMayBoot: history keeps 300 bytes of a warning, and all of this one.
func TestManyDisksMayBoot(t *testing.T) {
	t.Parallel()
	image := partitioned(t)
	image[0] = 0xeb
	for others, want := range map[int]string{
		7:   "/dev/nvme101n1, /dev/nvme102n1, /dev/nvme103n1, /dev/nvme104n1, /dev/nvme105n1, /dev/nvme106n1, /dev/nvme107n1",
		8:   "/dev/nvme101n1, /dev/nvme102n1, /dev/nvme103n1, /dev/nvme104n1, /dev/nvme105n1, /dev/nvme106n1 and 2 others",
		200: "/dev/nvme101n1, /dev/nvme102n1, /dev/nvme103n1, /dev/nvme104n1, /dev/nvme105n1, /dev/nvme106n1 and 194 others",
	} {
		m, options := bigMachine(t)
		for i := range others {
			name := fmt.Sprintf("nvme%dn1", 101+i)
			options.Disks = append(options.Disks, &agentv1.BlockDevice{Name: name, SizeBytes: 64 * mebibyte})
			if err := os.WriteFile(filepath.Join(m.root, "dev", name), image[:mebibyte], 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want = "the firmware may boot another disk than /dev/sda, by the boot sector of " + want
		instead, unread := bootsInstead(options, options.Disks[0], partition{}, false)
		if instead == nil || instead.Error() != want || unread != nil || len(want) > 300 {
			t.Errorf("%d others: %v, %v", others, instead, unread)
		}
	}
}
