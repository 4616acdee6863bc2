package install

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// tool runs a program that others have written, as a second opinion.
func tool(t *testing.T, stdin, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		path = filepath.Join("/usr/sbin", name)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// images are those that tools have made. Each is made once: sfdisk waits until all that anybody has
// written to any disk of this computer is on it.
var images struct {
	sync.Mutex
	made map[string][]byte
}

// imageOf returns a copy of the image of that size with the partition table that sfdisk makes of
// the script, and with what finish does to the file.
func imageOf(t *testing.T, size int, script string, finish func(path string)) []byte {
	t.Helper()
	images.Lock()
	defer images.Unlock()
	if image, ok := images.made[script]; ok {
		return bytes.Clone(image)
	}
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, int64(size)); err != nil {
		t.Fatal(err)
	}
	tool(t, script, "sfdisk", "--quiet", path)
	finish(path)
	image, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if images.made == nil {
		images.made = make(map[string][]byte)
	}
	images.made[script] = image
	return bytes.Clone(image)
}

// partitioned is a disk image of 16 MiB with an EFI system partition and a root file system.
func partitioned(t *testing.T) []byte {
	t.Helper()
	const script = "label: gpt\nfirst-lba: 34\nstart=2048, size=4096, type=U, name=ESP\nstart=6144, size=8192, type=L, name=root\n"
	return imageOf(t, 8*mebibyte, script, func(path string) {
		tool(t, "", "mke2fs", "-q", "-F", "-t", "ext4", "-b", "1024", "-E", "offset=3145728", path, "4096")
	})
}

// forLargeSectors is the image of partitioned with its table for sectors of 4096 bytes.
func forLargeSectors(image []byte) []byte {
	const entriesSize = 128 * 128
	large := bytes.Clone(image)
	clear(large[512 : 2*512+entriesSize])
	header, entries := large[maxSector:][:92], large[2*maxSector:][:entriesSize]
	copy(header, image[512:])
	copy(entries, image[2*512:])
	for n := range 2 {
		for _, at := range []int{32, 40} { // its first and its last sector
			sector := entries[128*n+at:]
			binary.LittleEndian.PutUint64(sector, binary.LittleEndian.Uint64(sector)/8)
		}
	}
	binary.LittleEndian.PutUint32(header[88:], crc32.ChecksumIEEE(entries))
	binary.LittleEndian.PutUint32(header[16:], headerSum(header))
	return large
}

// bigSize is larger than the image that is installed there, and no whole number of MiB.
const bigSize = 12*mebibyte + 7*512

// bigMachine is a machine whose disk is larger than the image, so that a partition can grow.
func bigMachine(t *testing.T) (*machine, Options) {
	t.Helper()
	m := newMachine(t)
	if err := os.WriteFile(m.disk, oldData(bigSize), 0o600); err != nil {
		t.Fatal(err)
	}
	options := m.options()
	options.Disks[0].SizeBytes = bigSize
	options.MachineID = "m"
	return m, options
}

func TestGrow(t *testing.T) {
	t.Parallel()
	image := partitioned(t)
	m, options := bigMachine(t)
	request := requestFor(serveBytes(t, image), image)
	request.RootDisk = &agentv1.DiskSelector{Grow: true}
	if report := Run(t.Context(), request, options); !report.GetOk() {
		t.Fatal(report.GetError())
	}
	if said := tool(t, "", "sfdisk", "-V", m.disk); !strings.Contains(said, "No errors detected") {
		t.Errorf("sfdisk says: %s", said)
	}
	offset := FirstBootOffset(bigSize)
	table := tool(t, "", "sfdisk", "-d", m.disk)
	for _, want := range []string{
		fmt.Sprintf("last-lba: %d\n", offset/512+2047),
		fmt.Sprintf("start=%12d, size=        2048, type=8DA63339-0007-60C0-C436-083AC8230908", offset/512),
		"start=        2048, size=        4096, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B",
		fmt.Sprintf("start=        6144, size=%12d, type=0FC63DAF-8483-4772-8E79-3D69D8477DE4", offset/512-6144),
	} {
		if !strings.Contains(table, want) {
			t.Errorf("the table has no %q:\n%s", want, table)
		}
	}
	// What was in front of the file system's growth is still there, and it can be grown.
	root := filepath.Join(t.TempDir(), "root")
	disk, err := os.ReadFile(m.disk)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root, disk[6144*512:offset], 0o600); err != nil {
		t.Fatal(err)
	}
	tool(t, "", "e2fsck", "-fn", root)
	tool(t, "", "resize2fs", root)
	if !bytes.Equal(disk[offset-mebibyte:offset], make([]byte, mebibyte)) {
		t.Error("the end of the grown partition holds what was there before")
	}
	if first, err := DecodeFirstBoot(disk[offset:]); err != nil || first.GetToken().GetMachineId() != "m" {
		t.Errorf("the first-boot area: %v, %v", first, err)
	}
}

// TestAGrowingRootLeavesTheArea: growpart forgets what may be used of a disk, and lets a partition
// grow to the next one, or to the end of the disk. It does so with most images, asked or not.
func TestAGrowingRootLeavesTheArea(t *testing.T) {
	t.Parallel()
	image := partitioned(t)
	m, options := bigMachine(t)
	if report := Run(t.Context(), requestFor(serveBytes(t, image), image), options); !report.GetOk() {
		t.Fatal(report.GetError())
	}
	if said := tool(t, "", "sfdisk", "-V", m.disk); !strings.Contains(said, "No errors detected") {
		t.Errorf("sfdisk says: %s", said)
	}
	var forgotten strings.Builder
	for line := range strings.Lines(tool(t, "", "sfdisk", "-d", m.disk)) {
		if !strings.HasPrefix(line, "last-lba:") {
			forgotten.WriteString(line)
		}
	}
	tool(t, forgotten.String(), "sfdisk", "--quiet", "--no-reread", m.disk)
	tool(t, ", +", "sfdisk", "--quiet", "--no-reread", "-N", "2", m.disk)
	offset := FirstBootOffset(bigSize)
	if table := tool(t, "", "sfdisk", "-d", m.disk); !strings.Contains(table, fmt.Sprintf("start=        6144, size=%12d,", offset/512-6144)) {
		t.Errorf("the root has grown otherwise:\n%s", table)
	}
}

// TestHybridMBR: the old kind of table, beside a GPT, has partitions for firmware without GPT. Its
// entry for all else ends where they begin, also on a larger disk.
func TestHybridMBR(t *testing.T) {
	t.Parallel()
	image := partitioned(t)
	const protective, first, second = 446, 446 + 16, 446 + 32
	binary.LittleEndian.PutUint32(image[protective+12:], 2047)
	copy(image[first:second], []byte{4: 0x0c, 9: 0x08, 13: 0x10, 15: 0}) // FAT from 2048, 4096 sectors
	m, options := bigMachine(t)
	if report := Run(t.Context(), requestFor(serveBytes(t, image), image), options); !report.GetOk() {
		t.Fatal(report.GetError())
	}
	disk, err := os.ReadFile(m.disk)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(disk[protective:512], image[protective:512]) {
		t.Errorf("the MBR's entries are % x, those of the image % x", disk[protective:512], image[protective:512])
	}
}

func TestNoCloud(t *testing.T) {
	t.Parallel()
	for _, grow := range []bool{false, true} {
		image := partitioned(t)
		m, options := bigMachine(t)
		request := requestFor(serveBytes(t, image), image)
		request.RootDisk = &agentv1.DiskSelector{Grow: grow}
		request.Image.FirstBootForm = agentv1.FirstBootForm_FIRST_BOOT_FORM_NOCLOUD
		request.FirstBootData = bytes.Repeat([]byte("#cloud-config\n"), maxFirstBootData/14)
		if report := Run(t.Context(), request, options); !report.GetOk() {
			t.Fatal(report.GetError())
		}
		if said := tool(t, "", "sfdisk", "-V", m.disk); !strings.Contains(said, "No errors detected") {
			t.Errorf("sfdisk says: %s", said)
		}
		at := FirstBootOffset(bigSize) - seedSize
		table := tool(t, "", "sfdisk", "-d", m.disk)
		if want := fmt.Sprintf("start=%12d, size=        4096, type=EBD0A0A2-B9E5-4433-87C0-68B6B72699C7", at/512); !strings.Contains(table, want) {
			t.Errorf("the table has no %q:\n%s", want, table)
		}
		seed := fmt.Sprintf("%s@@%d", m.disk, at)
		if got := tool(t, "", "mtype", "-i", seed, "::user-data"); got != string(request.GetFirstBootData()) {
			t.Errorf("user-data has %d bytes: %.40q", len(got), got)
		}
		if got := tool(t, "", "mtype", "-i", seed, "::meta-data"); got != "instance-id: m-3-2\n" {
			t.Errorf("meta-data: %q", got)
		}
		probed := tool(t, "", "blkid", "-p", "-o", "export", "-O", fmt.Sprint(at), "-S", fmt.Sprint(seedSize), m.disk)
		if !strings.Contains(probed, "LABEL=CIDATA\n") || !strings.Contains(probed, "TYPE=vfat\n") {
			t.Errorf("blkid says: %s", probed)
		}
		file := filepath.Join(t.TempDir(), "seed")
		disk, err := os.ReadFile(m.disk)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, disk[at:at+seedSize], 0o600); err != nil {
			t.Fatal(err)
		}
		tool(t, "", "fsck.fat", "-n", file)
	}
}

// TestUnfitTables: an image that cannot be given what is asked for ends the install when its first
// MiB is there, and the disk is as it was.
func TestUnfitTables(t *testing.T) {
	t.Parallel()
	good := partitioned(t)
	change := func(offset int, to ...byte) []byte {
		image := bytes.Clone(good)
		copy(image[offset:], to)
		return image
	}
	// The header with a right checksum, and a value that makes no sense.
	header := func(offset int, value uint64) []byte {
		image := bytes.Clone(good)
		binary.LittleEndian.PutUint64(image[512+offset:], value)
		binary.LittleEndian.PutUint32(image[512+16:], headerSum(image[512:512+92]))
		return image
	}
	for name, test := range map[string]struct {
		image []byte
		want  string
	}{
		"none":               {testImage(1, 3*mebibyte), "no GUID partition table"},
		"header damaged":     {change(512+40, 0xff), "checksum of its header"},
		"entries damaged":    {change(1024+300, 0xff), "checksum of its entries"},
		"header of nonsense": {change(512+12, 0xff, 0xff), "makes no sense"},
		"entries far away":   {header(72, 1<<60), "not within its first MiB"},
		"entries overflow":   {header(72, 1<<63+2), "not within its first MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, options := bigMachine(t)
			request := requestFor(serveBytes(t, test.image), test.image)
			request.RootDisk = &agentv1.DiskSelector{Grow: true}
			report := Run(t.Context(), request, options)
			if report.GetOk() || !strings.Contains(report.GetError(), test.want) {
				t.Errorf("report: %v", report)
			}
			disk, err := os.ReadFile(m.disk)
			if err != nil || !bytes.Equal(disk, oldData(len(disk))) {
				t.Errorf("the disk was touched: %v", err)
			}
		})
	}
}

// TestSectors: an image with a partition table for sectors of another size than the disk has ends
// the install when its first MiB is there, and the disk is as it was.
func TestSectors(t *testing.T) {
	t.Parallel()
	small := partitioned(t)
	mbr := bytes.Clone(small)
	clear(mbr[512:1024])
	large := bytes.Clone(small)
	copy(large[4096:], small[512:1024])
	clear(large[512:1024])
	for name, test := range map[string]struct {
		image   []byte
		sectors int32
		refused int
	}{
		"512 on 512":               {small, 512, 0},
		"512 on 4096":              {small, 4096, 512},
		"512 on what is not known": {small, 0, 0},
		"MBR on 512":               {mbr, 512, 0},
		"MBR on 4096":              {mbr, 4096, 512},
		"4096 on 512":              {large, 512, 4096},
		"4096 on 4096":             {large, 4096, 0},
		"no table on 4096":         {testImage(1, 3*mebibyte), 4096, 0},
		"below a MiB on 4096":      {small[:mebibyte/2], 4096, 512},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, options := bigMachine(t)
			options.Disks[0].LogicalSectorBytes = test.sectors
			report := Run(t.Context(), requestFor(serveBytes(t, test.image), test.image), options)
			if test.refused == 0 {
				if !report.GetOk() {
					t.Error(report.GetError())
				}
				return
			}
			want := fmt.Sprintf("/dev/sda has logical sectors of %d bytes, and the image's partition table is for sectors of %d, so it would not boot",
				test.sectors, test.refused)
			if report.GetOk() || !strings.HasSuffix(report.GetError(), want) {
				t.Errorf("report: %v", report)
			}
			disk, err := os.ReadFile(m.disk)
			if err != nil || !bytes.Equal(disk, oldData(len(disk))) {
				t.Errorf("the disk was touched: %v", err)
			}
		})
	}
}

// TestPartitionsBehindTheRoom: the table of an image says whether its partitions fit the disk, also
// where the zeros at the image's end are left out.
func TestPartitionsBehindTheRoom(t *testing.T) {
	t.Parallel()
	const room, last = 6 * mebibyte, 7 * mebibyte // the end of the root partition
	head := partitioned(t)[:mebibyte]
	for name, test := range map[string]struct {
		head   []byte
		layout layout
	}{
		"as it is":             {head, layout{}},
		"grown":                {head, layout{grow: true}},
		"with a seed":          {head, layout{seed: true}},
		"for sectors of 4 KiB": {forLargeSectors(head), layout{sectors: maxSector}},
	} {
		l := test.layout
		l.request, l.size = &agentv1.InstallRequest{}, room+2*mebibyte
		if _, err := l.apply(test.head); err == nil || err.Error() != "partition 2 of the image ends behind the room that the disk has for it" {
			t.Errorf("%s: got %v", name, err)
		}
		l.size = last + 2*mebibyte
		if l.seed {
			l.size += seedSize
		}
		if _, err := l.apply(test.head); err != nil {
			t.Errorf("%s, on a disk that it fits: %v", name, err)
		}
	}

	m, options := bigMachine(t)
	options.Disks[0].SizeBytes = room + 2*mebibyte
	if err := os.Truncate(m.disk, options.Disks[0].GetSizeBytes()); err != nil {
		t.Fatal(err)
	}
	image := partitioned(t)[:5*mebibyte]
	report := Run(t.Context(), requestFor(serveBytes(t, image), image), options)
	if report.GetOk() || !strings.Contains(report.GetError(), "ends behind the room") || report.GetDisk() != "" {
		t.Errorf("report: %v", report)
	}
	if disk, err := os.ReadFile(m.disk); err != nil || !bytes.Equal(disk, oldData(len(disk))) {
		t.Errorf("the disk was touched: %v", err)
	}
}

// TestImageOfAnInstalledDisk: an image that was read from a disk of the same size, where an install
// had made its first-boot area, fits without it. The area is not there twice.
func TestImageOfAnInstalledDisk(t *testing.T) {
	t.Parallel()
	const size = 10 * mebibyte
	l := layout{request: &agentv1.InstallRequest{InstallGeneration: 1}, size: size}
	first, err := l.apply(partitioned(t)[:mebibyte])
	if err != nil {
		t.Fatal(err)
	}
	l.request = &agentv1.InstallRequest{InstallGeneration: 2}
	again, err := l.apply(first.head)
	if err != nil {
		t.Fatal(err)
	}
	table, err := readTable(again.head, gptSector)
	if err != nil {
		t.Fatal(err)
	}
	before, err := readTable(first.head, gptSector)
	if err != nil {
		t.Fatal(err)
	}
	partitions, earlier := table.partitions(), before.partitions()
	if len(partitions) != 3 || partitions[2].kind != typeReserved || partitions[2].id == earlier[2].id || again.backup == nil {
		t.Errorf("partitions: %v, earlier: %v", partitions, earlier)
	}
	l.size -= 2 * mebibyte
	if _, err := l.apply(first.head); err == nil || !strings.Contains(err.Error(), "partition 2 of the image ends behind the room") {
		t.Errorf("on a disk that is too small for its last partition: %v", err)
	}
}

func FuzzTable(f *testing.F) {
	f.Add(make([]byte, 4096), int64(64<<20))
	f.Fuzz(func(t *testing.T, start []byte, size int64) {
		head := make([]byte, mebibyte)
		copy(head, start)
		if len(start) > 1024 { // right checksums let the fuzzer past them
			copy(head[512:], gptSignature)
			if n := binary.LittleEndian.Uint32(head[512+12:]); n < gptMinHeader || n > gptSector {
				binary.LittleEndian.PutUint32(head[512+12:], gptMinHeader)
			}
			binary.LittleEndian.PutUint32(head[512+16:], headerSum(head[512:512+binary.LittleEndian.Uint32(head[512+12:])]))
		}
		sum := sha256.Sum256(head)
		size = max(minDisk, size%(1<<50))
		_, _ = layout{request: &agentv1.InstallRequest{}, size: size, grow: true, seed: true}.apply(head)
		if sha256.Sum256(head) != sum {
			t.Error("the image's own first MiB was changed")
		}
		areas, _, err := areasOf(bytes.NewReader(head), size)
		if err != nil || len(areas) > 2 || areas[0] != FirstBootOffset(size) || slices.Max(areas) > areas[0] || slices.Min(areas) < 0 {
			t.Errorf("areas of %d bytes: %v, %v", size, areas, err)
		}
	})
}
