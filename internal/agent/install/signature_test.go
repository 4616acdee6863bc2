package install

import (
	"bytes"
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

// TestContents puts each mark where it belongs. blkid, which knows most of them, must agree that
// there is something.
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
	for _, s := range signatures {
		found, err := contents(bytes.NewReader(disk(int(s.offset), s.magic)), size)
		if err != nil || !slices.Contains(found, s.what) {
			t.Errorf("%s at %d: found %q, %v", s.what, s.offset, found, err)
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
		"noise":              bytes.Repeat([]byte("old data"), size/8),
		"boot code, no disk": disk(0, strings.Repeat("\xfa", 510)+"\x55\xaa"),
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
	copy(m.old[1080:], "\x53\xef")
	if err := os.WriteFile(m.disk, m.old, 0o600); err != nil {
		t.Fatal(err)
	}
	request := requestFor(serveBytes(t, image), image)
	report := Run(t.Context(), request, m.options())
	want := "/dev/sda holds an ext2, ext3 or ext4 file system, and the request does not allow that to be erased; nothing was written"
	if report.GetOk() || report.GetError() != want {
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
