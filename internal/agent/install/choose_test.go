package install

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

func TestChoose(t *testing.T) {
	t.Parallel()
	disks := []*agentv1.BlockDevice{
		{Name: "sdd", Serial: "D", SizeBytes: 500 * mebibyte, Wwn: "0xAB"},
		{Name: "sdc", Serial: "C", SizeBytes: 500 * mebibyte},
		{Name: "sdb", Serial: "B", SizeBytes: 100 * mebibyte},
		{Name: "sda", Serial: "A", SizeBytes: 2 * mebibyte},
		{Name: "sde", Serial: "E", SizeBytes: 900 * mebibyte, Removable: true},
		{Name: "sdf", Serial: "F", SizeBytes: 900 * mebibyte, ReadOnly: true},
		{Name: "sdg", Serial: "G", SizeBytes: 900 * mebibyte},
		{Name: "sdh", OtherPaths: []string{"sdq", "sdg"}, Serial: "H", SizeBytes: 900 * mebibyte},
		{Name: "sdi", Serial: "I", SizeBytes: 950 * mebibyte, Protocol: "usb"},
		{Name: "sdj", Serial: "J", SizeBytes: 90 * mebibyte, Protocol: "iscsi"},
		{Name: "sdk", Wwn: "0xcd", SizeBytes: 950 * mebibyte, Protocol: "fc", Model: "LUN"},
		{Name: "nvme9n1", Wwn: "0xef", SizeBytes: 950 * mebibyte, Protocol: "nvme-tcp"},
		{Name: "nvme8n1", Serial: "R", Model: "REMOTE", SizeBytes: 70 * mebibyte, Protocol: "nvme-rdma"},
		{Name: "nvme7n1", Serial: "Q", Model: "REMOTE", SizeBytes: 60 * mebibyte, Protocol: "nvme-fc"},
		{Name: "mmcblk0", Serial: "0x12", SizeBytes: 80 * mebibyte, Protocol: "sd"},
		{Name: "../x", Serial: "X", SizeBytes: 900 * mebibyte},
	}
	inUse := func(name string) string {
		if name == "sdg" {
			return "is mounted at /"
		}
		return ""
	}
	tests := []struct {
		name     string
		selector *agentv1.DiskSelector
		need     int64
		want     string
		err      string
	}{
		{"smallest", &agentv1.DiskSelector{Pick: agentv1.DiskSelector_PICK_SMALLEST}, 1, "sdb", ""},
		{"smallest that holds the image", &agentv1.DiskSelector{Pick: agentv1.DiskSelector_PICK_SMALLEST}, 99 * mebibyte, "sdc", ""},
		{"largest, first by serial number", &agentv1.DiskSelector{Pick: agentv1.DiskSelector_PICK_LARGEST}, 1, "sdc", ""},
		{"minimum", &agentv1.DiskSelector{Pick: agentv1.DiskSelector_PICK_SMALLEST, MinSize: 101 * mebibyte}, 1, "sdc", ""},
		{"serial", &agentv1.DiskSelector{Serial: "D"}, 1, "sdd", ""},
		{"WWN in either case", &agentv1.DiskSelector{Wwn: "0xab"}, 1, "sdd", ""},
		{"serial and other WWN", &agentv1.DiskSelector{Serial: "C", Wwn: "0xab"}, 1, "", "no disk fits"},
		{"ambiguous", nil, 1, "", "3 disks match (sdb, sdc, sdd)"},
		{"mounted", &agentv1.DiskSelector{Serial: "G"}, 1, "", "sdg is mounted at /"},
		{"mounted by another path", &agentv1.DiskSelector{Serial: "H"}, 1, "", "sdh is mounted at / (as sdg)"},
		{"removable", &agentv1.DiskSelector{Serial: "E"}, 1, "", "sde is removable"},
		{"read-only", &agentv1.DiskSelector{Serial: "F"}, 1, "", "sdf is read-only"},
		{"too small", &agentv1.DiskSelector{Serial: "A"}, 1, "", "sda is too small"},
		{"USB, by its serial", &agentv1.DiskSelector{Serial: "I"}, 1, "sdi", ""},
		{"USB, by its size", &agentv1.DiskSelector{MinSize: 940 * mebibyte}, 1, "", "sdi is a USB disk, and neither its serial number nor its WWN was asked for"},
		{"FC, by its WWN", &agentv1.DiskSelector{Wwn: "0xcd"}, 1, "sdk", ""},
		{"FC, by its model", &agentv1.DiskSelector{Model: "LUN"}, 1, "", "sdk is not in the machine (fc), and neither"},
		{"iSCSI, by its serial", &agentv1.DiskSelector{Serial: "J"}, 1, "sdj", ""},
		{"NVMe over a network", &agentv1.DiskSelector{MinSize: 940 * mebibyte}, 1, "", "nvme9n1 is not in the machine (nvme-tcp)"},
		{"NVMe over RDMA, by its model", &agentv1.DiskSelector{Model: "REMOTE"}, 1, "", "nvme8n1 is not in the machine (nvme-rdma), and neither"},
		{"NVMe over Fibre Channel, by its model", &agentv1.DiskSelector{Model: "REMOTE"}, 1, "", "nvme7n1 is not in the machine (nvme-fc), and neither"},
		{"NVMe over Fibre Channel, by its serial", &agentv1.DiskSelector{Serial: "Q"}, 1, "nvme7n1", ""},
		{"a memory card, by its serial", &agentv1.DiskSelector{Serial: "0x12"}, 1, "mmcblk0", ""},
		{"a memory card, by its size", &agentv1.DiskSelector{MinSize: 940 * mebibyte}, 1, "", "mmcblk0 is a memory card, and neither"},
		{"bad name", &agentv1.DiskSelector{Serial: "X"}, 1, "", "name that makes no sense"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := choose(disks, test.selector, test.need, inUse, prior{})
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v, %v", got, err)
				}
				return
			}
			if err != nil || got.GetName() != test.want {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
	if _, err := choose(nil, nil, 1, inUse, prior{}); err == nil {
		t.Error("a disk out of nothing")
	}
}

// TestTies: among disks of one size the order is that of what they hold and of what they are, and
// not of the names that the kernel gives them.
func TestTies(t *testing.T) {
	t.Parallel()
	const size = 500 * mebibyte
	free := func(string) string { return "" }
	disk := func(name, serial, wwn string) *agentv1.BlockDevice {
		return &agentv1.BlockDevice{Name: name, Serial: serial, Wwn: wwn, SizeBytes: size}
	}
	for name, test := range map[string]struct {
		disks []*agentv1.BlockDevice
		prior prior
		want  string
	}{
		"by serial number":     {[]*agentv1.BlockDevice{disk("sda", "B", ""), disk("sdb", "A", "")}, prior{}, "sdb"},
		"and then by WWN":      {[]*agentv1.BlockDevice{disk("sda", "A", "0x2"), disk("sdb", "A", "0x1")}, prior{}, "sdb"},
		"by name at last":      {[]*agentv1.BlockDevice{disk("vdb", "", ""), disk("vda", "", "")}, prior{}, "vda"},
		"the system before it": {[]*agentv1.BlockDevice{disk("sda", "A", ""), disk("sdb", "B", "")}, prior{generations: map[string]int64{"sda": 1, "sdb": 2}}, "sdb"},
	} {
		for _, pick := range []agentv1.DiskSelector_Pick{agentv1.DiskSelector_PICK_SMALLEST, agentv1.DiskSelector_PICK_LARGEST} {
			if got, err := choose(test.disks, &agentv1.DiskSelector{Pick: pick}, 1, free, test.prior); err != nil || got.GetName() != test.want {
				t.Errorf("%s, %s: %v, %v", name, pick, got, err)
			}
		}
	}
}

// twoDisks is a machine with two disks of one size, that hold something.
func twoDisks(t *testing.T) (root string, options Options) {
	t.Helper()
	m := newMachine(t)
	m.old = bytes.Clone(m.old)
	copy(m.old[1080:], "\x53\xef")
	for _, name := range []string{"sda", "sdb"} {
		if err := os.WriteFile(filepath.Join(m.root, "dev", name), m.old, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	options = m.options()
	options.MachineID = "m"
	options.Disks = []*agentv1.BlockDevice{{Name: "sda", Serial: "S1", SizeBytes: diskSize}, {Name: "sdb", Serial: "S2", SizeBytes: diskSize}}
	return m.root, options
}

// TestALaterAttemptWritesTheSameDisk: whatever the disks are called by then, and whether or not the
// agent remembers. A new install may have another one.
func TestALaterAttemptWritesTheSameDisk(t *testing.T) {
	t.Parallel()
	image := testImage(9, 3*mebibyte)
	begin := func(t *testing.T) (string, Options, *agentv1.InstallRequest) {
		t.Helper()
		root, options := twoDisks(t)
		request := requestFor(serveBytes(t, image), image)
		request.Image.Digest = digestOf(nil)
		request.RootDisk = &agentv1.DiskSelector{Pick: agentv1.DiskSelector_PICK_SMALLEST, Erase: true}
		options.Begin = func(_ context.Context, disk *agentv1.BegunDisk) error {
			options.Begun = disk
			return nil
		}
		if report := Run(t.Context(), request, options); report.GetOk() || report.GetDisk() != "/dev/sda" {
			t.Fatal(report)
		}
		request.Attempt++
		request.Image.Digest = digestOf(image)
		return root, options, request
	}
	// rename gives each of the two disks the place and the name of the other one.
	rename := func(t *testing.T, root string) {
		t.Helper()
		at := func(name string) string { return filepath.Join(root, "dev", name) }
		for _, move := range [][2]string{{"sda", "x"}, {"sdb", "sda"}, {"x", "sdb"}} {
			if err := os.Rename(at(move[0]), at(move[1])); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Run("other names, and the agent remembers nothing", func(t *testing.T) {
		t.Parallel()
		root, options, request := begin(t)
		rename(t, root)
		options.Begun = nil
		for _, d := range options.Disks {
			d.Serial = "" // as on many virtual machines
		}
		if report := Run(t.Context(), request, options); !report.GetOk() || report.GetDisk() != "/dev/sdb" {
			t.Errorf("report: %v", report)
		}
	})
	t.Run("a smaller one has turned up, and the agent remembers nothing", func(t *testing.T) {
		t.Parallel()
		root, options, request := begin(t)
		if err := os.WriteFile(filepath.Join(root, "dev/sdc"), make([]byte, 10*mebibyte), 0o600); err != nil {
			t.Fatal(err)
		}
		options.Begun = nil
		options.Disks = append(options.Disks, &agentv1.BlockDevice{Name: "sdc", Serial: "S0", SizeBytes: 10 * mebibyte})
		if report := Run(t.Context(), request, options); !report.GetOk() || report.GetDisk() != "/dev/sda" {
			t.Errorf("report: %v", report)
		}
	})
	t.Run("it cannot be told by its content, and the agent remembers", func(t *testing.T) {
		t.Parallel()
		root, options, request := begin(t)
		rename(t, root)
		options.Disks[0].Serial, options.Disks[1].Serial = "S2", "S1"
		if err := os.WriteFile(filepath.Join(root, "dev/sdb"), make([]byte, diskSize), 0o600); err != nil {
			t.Fatal(err)
		}
		if report := Run(t.Context(), request, options); !report.GetOk() || report.GetDisk() != "/dev/sdb" {
			t.Errorf("report: %v", report)
		}
	})
	t.Run("it is gone", func(t *testing.T) {
		t.Parallel()
		root, options, request := begin(t)
		options.Disks = options.Disks[1:]
		want := `an earlier attempt at this install has begun to write sda (serial number "S1"), which is not there any more; ask for the install anew to have another disk written`
		if report := Run(t.Context(), request, options); report.GetError() != want {
			t.Errorf("report: %v", report)
		}
		before, err := os.ReadFile(filepath.Join(root, "dev/sdb"))
		if err != nil || before[1080] != 0x53 {
			t.Error("the other disk was touched")
		}
		request.InstallGeneration++
		if report := Run(t.Context(), request, options); !report.GetOk() || report.GetDisk() != "/dev/sdb" {
			t.Errorf("a new install: %v", report)
		}
	})
	t.Run("it does not fit any more", func(t *testing.T) {
		t.Parallel()
		_, options, request := begin(t)
		options.Disks[0].ReadOnly = true
		want := "an earlier attempt at this install has begun to write sda, which is read-only"
		if report := Run(t.Context(), request, options); !strings.HasPrefix(report.GetError(), want) {
			t.Errorf("report: %v", report)
		}
	})
	t.Run("it cannot be read", func(t *testing.T) {
		t.Parallel()
		root, options, request := begin(t)
		options.Begun = nil
		if err := os.Remove(filepath.Join(root, "dev/sda")); err != nil {
			t.Fatal(err)
		}
		// A directory can be opened, and fails to be read.
		if err := os.Mkdir(filepath.Join(root, "dev/sda"), 0o700); err != nil {
			t.Fatal(err)
		}
		want := "an earlier attempt at this install may have begun to write sda, which cannot be read: "
		if report := Run(t.Context(), request, options); !strings.HasPrefix(report.GetError(), want) {
			t.Errorf("report: %v", report)
		}
	})
}

// TestAZonedDiskIsNotWritten: its zones take writes in order alone, so an install of it would fail
// when it has wiped its first zone already. It is not taken before a jump either.
func TestAZonedDiskIsNotWritten(t *testing.T) {
	t.Parallel()
	image := testImage(9, 3*mebibyte)
	root, options := twoDisks(t)
	model := filepath.Join(root, "sys/class/block/sda/queue/zoned")
	if err := errors.Join(os.MkdirAll(filepath.Dir(model), 0o755), os.WriteFile(model, []byte("host-managed\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	request := requestFor(serveBytes(t, image), image)
	request.RootDisk = &agentv1.DiskSelector{Serial: "S1"}
	if report := Refused(request, options); report != nil {
		t.Errorf("before a jump: %v", report)
	}
	request.RootDisk.Erase = true
	before, err := os.ReadFile(filepath.Join(root, "dev/sda"))
	if err != nil {
		t.Fatal(err)
	}
	report := Run(t.Context(), request, options)
	if want := "sda is zoned (host-managed), so no image can be written to it"; report.GetOk() || !strings.Contains(report.GetError(), want) {
		t.Errorf("report: %v", report)
	}
	if after, err := os.ReadFile(filepath.Join(root, "dev/sda")); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the disk was touched: %v", err)
	}
	request.RootDisk = &agentv1.DiskSelector{Pick: agentv1.DiskSelector_PICK_SMALLEST, Erase: true}
	if report := Run(t.Context(), request, options); !report.GetOk() || report.GetDisk() != "/dev/sdb" {
		t.Errorf("the smallest: %v", report)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for path, content := range map[string]string{
		"proc/self/mountinfo":                  "22 1 8:2 / / rw,relatime - ext4 /dev/sda2 rw\n",
		"proc/swaps":                           "Filename\tType\tSize\n/dev/sdb1 partition 1 0 -2\n",
		"sys/class/block/sda/dev":              "8:0\n",
		"sys/class/block/sda/sda2/dev":         "8:2\n",
		"sys/class/block/sda/sda2/partition":   "2\n",
		"sys/class/block/sdb/dev":              "8:16\n",
		"sys/class/block/sdb/sdb1/dev":         "8:17\n",
		"sys/class/block/sdb/sdb1/partition":   "1\n",
		"sys/class/block/sdc/dev":              "8:32\n",
		"sys/class/block/sdc/holders/dm-0/dev": "254:0\n",
		"sys/class/block/sdd/dev":              "8:48\n",
		"sys/class/block/sde/queue/zoned":      "host-managed\n",
		"sys/class/block/sdf/queue/zoned":      "host-aware\n",
		"sys/class/block/sdg/queue/zoned":      "none\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	usage := readUsage(root)
	for disk, want := range map[string]string{
		"sda": "is mounted at /", "sdb": "is used as swap", "sdc": "is held by dm-0", "sdd": "",
		"sde": "is zoned (host-managed), so no image can be written to it", "sdf": "", "sdg": "",
	} {
		if got := usage.of(disk); got != want {
			t.Errorf("%s %q, want %q", disk, got, want)
		}
	}
}

func FuzzUsage(f *testing.F) {
	f.Add([]byte("22 1 8:2 / / rw - ext4 /dev/sda2 rw\n"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		parseSwaps(data)
		parseContentRange(string(data))
	})
}
