package install

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// blank is a file of 8 MiB.
func blank(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, make([]byte, 8*mebibyte), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// contents says what is known of what a disk of that size holds, each thing once.
func contents(disk io.ReaderAt, size int64) ([]string, error) {
	ends, err := endsOf(disk, size)
	return ends.kinds(), err
}

// TestContentsByTheirOwnTools has the programs of others make what a disk may hold.
func TestContentsByTheirOwnTools(t *testing.T) {
	t.Parallel()
	for want, command := range map[string][]string{
		"an ext2, ext3 or ext4 file system": {"mke2fs", "-q", "-F"},
		"a FAT file system":                 {"mkfs.vfat"},
		"swap space":                        {"mkswap"},
		"a GUID partition table and the backup of a GUID partition table and a partition table (MBR)": {"sfdisk", "--quiet"},
	} {
		t.Run(command[0], func(t *testing.T) {
			t.Parallel()
			path := blank(t)
			tool(t, "label: gpt\n,\n", command[0], append(command[1:], path)...)
			file, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = file.Close() }()
			found, err := contents(file, 8*mebibyte)
			if err != nil || strings.Join(found, " and ") != want {
				t.Errorf("found %q, %v", found, err)
			}
		})
	}
}

// TestContents has whole marks recognised, with what follows them, and nothing in what only looks
// like one. TestOnADisk has all of them.
func TestContents(t *testing.T) {
	t.Parallel()
	const size = 8*mebibyte + 5*512
	disk := func(offset int, magic string) []byte {
		data := make([]byte, size)
		if offset < 0 {
			offset += size
		}
		copy(data[offset:], magic)
		return data
	}
	for what, mark := range map[string]struct {
		offset int
		magic  string
	}{
		"a member of a Stratis pool": {516, "!Stra0tis\x86\xff\x02\x5e\x41\x72\x68"},
		"data of VDO":                {0, "dmvdo001"},
		"data of dm-integrity":       {0, "integrt\x00\x05"},
		"a disk of Oracle ASM":       {32, "ORCLDISKDATA01"},
		"a ReiserFS file system":     {64<<10 + 0x34, "ReIsEr2Fs"},
		"a JFS file system":          {32 << 10, "JFS1\x01"},
		"a NILFS2 file system":       {1024, "\x02\x00\x00\x00\x00\x00\x34\x34"},
		"an HFS+ file system":        {1024, "H+\x00\x04"},
		"a UDF file system":          {32 << 10, "\x00BEA01\x01"},
	} {
		found, err := contents(bytes.NewReader(disk(mark.offset, mark.magic)), size)
		if err != nil || !slices.Equal(found, []string{what}) {
			t.Errorf("%s at %d: found %q, %v", what, mark.offset, found, err)
		}
	}
	for name, data := range map[string][]byte{
		"a member of a Linux RAID": disk(size/(64<<10)*(64<<10)-64<<10, "\xfc\x4e\x2b\xa9"),
		"a member of a ZFS pool":   disk(132<<10, zfsMagic[1]),
		"a partition table (MBR)":  disk(446, "\x80\x01\x01\x00\x83\xfe\xff\xff\x3f\x00\x00\x00\x10\x00\x00\x00"+strings.Repeat("\x00", 48)+"\x55\xaa"),
	} {
		if found, err := contents(bytes.NewReader(data), size); err != nil || !slices.Equal(found, []string{name}) {
			t.Errorf("%s: found %q, %v", name, found, err)
		}
	}
	for name, data := range map[string][]byte{
		"nothing":            make([]byte, size),
		"noise":              oldData(size),
		"boot code, no disk": disk(0, strings.Repeat("\xfa", 510)+"\x55\xaa"),
		"code like HFS+":     disk(1024, "H+\x90\x90"),
		"code like NILFS2":   disk(1030, "\x34\x34"),
	} {
		if found, err := contents(bytes.NewReader(data), int64(len(data))); err != nil || len(found) > 0 {
			t.Errorf("%s: found %q, %v", name, found, err)
		}
	}
}

func TestForeignDiskIsRefused(t *testing.T) {
	t.Parallel()
	image := testImage(1, 3*mebibyte)
	m := newMachine(t)
	m.old = bytes.Clone(m.old)
	copy(m.old[1080:], "\x53\xef")
	if err := os.WriteFile(m.disk, m.old, 0o600); err != nil {
		t.Fatal(err)
	}
	request := requestFor(serveBytes(t, image), image)
	report := Run(t.Context(), request, m.options())
	want := "/dev/sda holds an ext2, ext3 or ext4 file system, and the request does not allow that to be erased (--erase, or root_disk: {erase: true}); nothing was written"
	if report.GetOk() || report.GetError() != want || !report.GetNeedsErase() {
		t.Errorf("report: %v", report)
	}
	if !bytes.Equal(m.content(t), m.old) {
		t.Error("the disk was touched")
	}
	request.RootDisk = &agentv1.DiskSelector{Erase: true}
	if report := Run(t.Context(), request, m.options()); !report.GetOk() {
		t.Fatal(report.GetError())
	}
	checkInstalled(t, m, image, request)
}

// TestOwnInstallIsNoStranger: the next install of the same machine needs no permission to erase,
// and another machine's disk, moved here, does.
func TestOwnInstallIsNoStranger(t *testing.T) {
	t.Parallel()
	image := partitioned(t)
	m, options := bigMachine(t)
	request := requestFor(serveBytes(t, image), image)
	if report := Run(t.Context(), request, options); !report.GetOk() {
		t.Fatal(report.GetError())
	}
	next := proto.CloneOf(request)
	next.InstallGeneration++
	stranger := options
	stranger.MachineID = "another"
	if report := Run(t.Context(), next, stranger); report.GetOk() || !strings.Contains(report.GetError(), "a GUID partition table") {
		t.Errorf("report: %v", report)
	}
	if report := Run(t.Context(), next, options); !report.GetOk() {
		t.Fatal(report.GetError())
	}
	_ = m
}

// TestWhatBecameOfAnInstall: a first-boot area stays on a disk whatever is done with it. It says
// that an install of the machine may be overwritten only while that install is there.
func TestWhatBecameOfAnInstall(t *testing.T) {
	t.Parallel()
	image := partitioned(t)
	write := func(t *testing.T, path string, offset int64, data string) {
		t.Helper()
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		if _, err := file.WriteAt([]byte(data), offset); err != nil {
			t.Fatal(err)
		}
	}
	wipe := func(t *testing.T, path string) { t.Helper(); write(t, path, 0, strings.Repeat("\x00", mebibyte)) }
	for name, test := range map[string]struct {
		change func(t *testing.T, path string)
		want   string
	}{
		"nothing": {func(*testing.T, string) {}, ""},
		"its last partition was grown, and the backup moved": {func(t *testing.T, path string) {
			t.Helper()
			tool(t, "", "sfdisk", "--quiet", "--relocate", "gpt-bak-std", path)
			tool(t, ", +", "sfdisk", "--quiet", "--no-reread", "-N", "2", path)
		}, ""},
		"it has another boot loader": {func(t *testing.T, path string) { t.Helper(); write(t, path, 0, "\xeb\x63\x90GRUB") }, ""},
		"its disk has another GUID": {func(t *testing.T, path string) {
			t.Helper()
			tool(t, "", "sfdisk", "--quiet", "--disk-id", path, "11111111-2222-4333-8444-555555555555")
		}, ""},
		"it has one more partition": {func(t *testing.T, path string) {
			t.Helper()
			tool(t, "", "sfdisk", "--quiet", "--relocate", "gpt-bak-std", path)
			tool(t, "16384, 4096, L", "sfdisk", "--quiet", "--append", path)
		}, ""},
		"LVM on the whole disk": {func(t *testing.T, path string) {
			t.Helper()
			wipe(t, path)
			write(t, path, 512+24, "LVM2 001")
		}, "an LVM physical volume (an install of this machine was there, but not what is there now)"},
		"LUKS on the whole disk, the table is left": {func(t *testing.T, path string) {
			t.Helper()
			write(t, path, 0, "LUKS\xba\xbe")
		}, "encrypted data (LUKS)"},
		"ZFS, with a table of its own": {func(t *testing.T, path string) {
			t.Helper()
			tool(t, "label: gpt\nsize=40M, type=6A898CC3-1DD2-11B2-99A6-080020736631\n", "sfdisk", "--quiet", path)
		}, "a GUID partition table"},
		"LVM in a new partition, in the same table": {func(t *testing.T, path string) {
			t.Helper()
			tool(t, "", "sfdisk", "--quiet", "--delete", path)
			tool(t, "2048, 20480, E6D6D379-F507-44C2-A23C-238F2A3DF928\n", "sfdisk", "--quiet", "--append", path)
		}, "an install of this machine was there"},
		"its root was made a partition of LVM": {func(t *testing.T, path string) {
			t.Helper()
			tool(t, "", "sfdisk", "--quiet", "--part-type", path, "2", "E6D6D379-F507-44C2-A23C-238F2A3DF928")
		}, "an install of this machine was there"},
		"an older agent wrote the area": {func(t *testing.T, path string) {
			t.Helper()
			area, err := EncodeFirstBoot(&agentv1.FirstBoot{Token: &agentv1.BootToken{MachineId: "m", InstallGeneration: 2}})
			if err != nil {
				t.Fatal(err)
			}
			write(t, path, FirstBootOffset(bigSize), string(area))
		}, "maybe of an install of this machine, by an agent that did not record it"},
		"another disk holds a newer one": {func(t *testing.T, path string) {
			t.Helper()
			area, err := EncodeFirstBoot(&agentv1.FirstBoot{Token: &agentv1.BootToken{MachineId: "m", InstallGeneration: 4}})
			if err != nil {
				t.Fatal(err)
			}
			other := filepath.Join(filepath.Dir(path), "sdb")
			if err := os.WriteFile(other, []byte("boots"), 0o600); err != nil {
				t.Fatal(err)
			}
			write(t, other, FirstBootOffset(bigSize), string(area))
		}, "of an older install of this machine: another disk holds a newer one"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, options := bigMachine(t)
			options.Disks[0].Serial = "S1"
			options.Disks = append(options.Disks, &agentv1.BlockDevice{Name: "sdb", Serial: "S2", SizeBytes: options.Disks[0].GetSizeBytes()})
			request := requestFor(serveBytes(t, image), image)
			request.RootDisk = &agentv1.DiskSelector{Serial: "S1"}
			request.BootToken.InstallGeneration = request.GetInstallGeneration()
			if report := Run(t.Context(), request, options); !report.GetOk() {
				t.Fatal(report.GetError())
			}
			test.change(t, m.disk)
			before, err := os.ReadFile(m.disk)
			if err != nil {
				t.Fatal(err)
			}
			next := proto.CloneOf(request)
			next.InstallGeneration += 2
			report := Run(t.Context(), next, options)
			if test.want == "" {
				if !report.GetOk() {
					t.Errorf("report: %v", report)
				}
				return
			}
			after, err := os.ReadFile(m.disk)
			if report.GetOk() || !strings.Contains(report.GetError(), test.want) || err != nil || !bytes.Equal(before, after) {
				t.Errorf("report: %v, %v", report, err)
			}
			next.RootDisk.Erase = true
			if report := Run(t.Context(), next, options); !report.GetOk() {
				t.Errorf("with permission: %v", report)
			}
		})
	}
}

// TestAnInstallWithAnMBR: what tells the partitions of an MBR is recorded, too.
func TestAnInstallWithAnMBR(t *testing.T) {
	t.Parallel()
	m, options := bigMachine(t)
	image := withMBR(t, "83")
	request := requestFor(serveBytes(t, image), image)
	for range 2 {
		if report := Run(t.Context(), request, options); !report.GetOk() {
			t.Fatal(report.GetError())
		}
		request.InstallGeneration++
	}
	for name, script := range map[string]string{
		"of another disk": "label-id: 0x04030202\nstart=2048, size=2048, type=83\nstart=4096, size=2048, type=83\n",
		"elsewhere":       "label-id: 0x04030201\nstart=2048, size=2048, type=83\nstart=6144, size=2048, type=83\n",
		"of another type": "label-id: 0x04030201\nstart=2048, size=2048, type=83\nstart=4096, size=2048, type=8e\n",
	} {
		tool(t, "label: dos\n"+script, "sfdisk", "--quiet", m.disk)
		if report := Run(t.Context(), request, options); report.GetOk() || !strings.Contains(report.GetError(), "an install of this machine was there") {
			t.Errorf("%s: report: %v", name, report)
		}
	}
}

// TestAnInstallWithoutPartitions: nothing tells the install of an image without partitions from
// what somebody else has made there, so it is erased only where that is allowed.
func TestAnInstallWithoutPartitions(t *testing.T) {
	t.Parallel()
	m, options := bigMachine(t)
	image := testImage(1, 3*mebibyte)
	copy(image[1080:], "\x53\xef")
	request := requestFor(serveBytes(t, image), image)
	if report := Run(t.Context(), request, options); !report.GetOk() {
		t.Fatal(report.GetError())
	}
	before, err := os.ReadFile(m.disk)
	if err != nil {
		t.Fatal(err)
	}
	request.InstallGeneration++
	report := Run(t.Context(), request, options)
	after, err := os.ReadFile(m.disk)
	if report.GetOk() || !strings.Contains(report.GetError(), "an install of this machine was there, but") || err != nil || !bytes.Equal(before, after) {
		t.Errorf("report: %v, %v", report, err)
	}
}
