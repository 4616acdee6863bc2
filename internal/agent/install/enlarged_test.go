package install

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// enlarged is a machine whose disk holds an install of it, and was made larger since.
func enlarged(t *testing.T, image []byte) (*machine, Options, *agentv1.InstallRequest) {
	t.Helper()
	m, options := bigMachine(t)
	request := requestFor(serveBytes(t, image), image)
	request.RootDisk = &agentv1.DiskSelector{Grow: true}
	request.BootToken.InstallGeneration, request.BootToken.Attempt = request.GetInstallGeneration(), request.GetAttempt()
	if report := Run(t.Context(), request, options); !report.GetOk() {
		t.Fatal(report.GetError())
	}
	options.Disks[0].SizeBytes = bigSize + 5*mebibyte + 512
	if err := os.Truncate(m.disk, options.Disks[0].GetSizeBytes()); err != nil {
		t.Fatal(err)
	}
	return m, options, request
}

// TestADiskThatWasMadeLarger: what it holds is an install of the machine all the same. It is kept
// from an older request, also one that may erase, and is no stranger to a newer one.
func TestADiskThatWasMadeLarger(t *testing.T) {
	t.Parallel()
	m, options, request := enlarged(t, partitioned(t))
	before, err := os.ReadFile(m.disk)
	if err != nil {
		t.Fatal(err)
	}
	again := proto.CloneOf(request)
	again.RootDisk.Erase = true
	if report := Run(t.Context(), again, options); report.GetOk() || report.GetHeldInstallGeneration() != request.GetInstallGeneration() ||
		report.GetHeldAttempt() != request.GetAttempt() {
		t.Errorf("the same install: %v", report)
	}
	if report := Refused(again, options); report.GetHeldInstallGeneration() != request.GetInstallGeneration() {
		t.Errorf("before a jump: %v", report)
	}
	if after, err := os.ReadFile(m.disk); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the disk was touched: %v", err)
	}
	size := options.Disks[0].GetSizeBytes()
	for range 2 { // the second time over one of the new size
		again = proto.CloneOf(again)
		again.RootDisk.Erase = false
		again.InstallGeneration++
		again.BootToken.InstallGeneration++
		if report := Run(t.Context(), again, options); !report.GetOk() {
			t.Fatalf("a newer install: %v", report)
		}
		disk, err := os.ReadFile(m.disk)
		if err != nil {
			t.Fatal(err)
		}
		first, err := DecodeFirstBoot(disk[FirstBootOffset(size):])
		if err != nil || first.GetToken().GetInstallGeneration() != again.GetInstallGeneration() {
			t.Errorf("the first-boot area of the new size: %v, %v", first, err)
		}
		if areas, _, err := areasOf(bytes.NewReader(disk), size); err != nil || len(areas) != 1 {
			t.Errorf("areas: %v, %v", areas, err)
		}
	}
}

// TestARecordOnADiskThatWasMadeLarger: the power may be cut when the new system is written and its
// record still is there, too.
func TestARecordOnADiskThatWasMadeLarger(t *testing.T) {
	t.Parallel()
	m, options, request := enlarged(t, partitioned(t))
	record, err := encodeArea(begunMagic, &agentv1.BegunInstall{MachineId: "m", InstallGeneration: 9})
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, m.disk, FirstBootOffset(bigSize)+begunSlots[1], record)
	if generation := readMark(m.root, options.Disks[0]).generation("m"); generation != 9 {
		t.Errorf("the disk counts as one of install generation %d", generation)
	}
	overwrite(t, m.disk, 512, make([]byte, 512)) // the header of the table
	if generation := readMark(m.root, options.Disks[0]).generation("m"); generation != 0 {
		t.Errorf("without a table it counts as one of install generation %d, that of the request is %d", generation, request.GetInstallGeneration())
	}
}

// TestACopyOnALargerDisk: where the disk would have an area there may be that of what it held
// before, of another install or of an older one, also of the same image. What counts is the one
// that is of what the disk holds. So it is with records.
func TestACopyOnALargerDisk(t *testing.T) {
	t.Parallel()
	m, options, request := enlarged(t, partitioned(t))
	size := options.Disks[0].GetSizeBytes()
	now, err := os.ReadFile(m.disk)
	if err != nil {
		t.Fatal(err)
	}
	there := partitionsOf(now)
	for name, stale := range map[string]*agentv1.FirstBoot{
		"another machine's":          {Token: &agentv1.BootToken{MachineId: "other", InstallGeneration: 9}, Content: &agentv1.DiskContent{Partitions: [][]byte{[]byte("x")}}},
		"an older one":               {Token: &agentv1.BootToken{MachineId: "m", InstallGeneration: 1}, Content: &agentv1.DiskContent{Partitions: [][]byte{[]byte("x")}}},
		"one of the same image":      {Token: &agentv1.BootToken{MachineId: "m", InstallGeneration: 1}, Content: &agentv1.DiskContent{Partitions: [][]byte{there[0], []byte("x")}}},
		"one that recorded nothing":  {Token: &agentv1.BootToken{MachineId: "m", InstallGeneration: 1}},
		"one that cannot be decoded": nil,
	} {
		area, err := EncodeFirstBoot(stale)
		if err != nil {
			t.Fatal(err)
		}
		if stale == nil {
			area[firstBootHeader-1] ^= 1
		}
		overwrite(t, m.disk, FirstBootOffset(size), area)
		if report := Refused(request, options); report.GetHeldInstallGeneration() != request.GetInstallGeneration() || report.GetHeldAttempt() != request.GetAttempt() {
			t.Errorf("%s: %v", name, report)
		}
	}
	for offset, begun := range map[int64]*agentv1.BegunInstall{
		FirstBootOffset(size):    {MachineId: "other", InstallGeneration: 20},
		FirstBootOffset(bigSize): {MachineId: "m", InstallGeneration: 9},
	} {
		record, err := encodeArea(begunMagic, begun)
		if err != nil {
			t.Fatal(err)
		}
		overwrite(t, m.disk, offset+begunSlots[1], record)
	}
	mark := readMark(m.root, options.Disks[0])
	if generation := mark.generation("m"); generation != 9 {
		t.Errorf("the disk counts as one of install generation %d", generation)
	}
	if _, next := mark.begun.newest("m"); next >= len(begunSlots) {
		t.Errorf("the next record would be in slot %d", next)
	}
}

// TestALargerDiskIsWipedFirst: its system may have made a partition where the record of an install
// is written, and must not boot with that in it.
func TestALargerDiskIsWipedFirst(t *testing.T) {
	t.Parallel()
	m, options, request := enlarged(t, partitioned(t))
	request = proto.CloneOf(request)
	request.InstallGeneration++
	request.BootToken.InstallGeneration++
	records := 0
	options.medium = func(inner medium) medium {
		return watched{inner, func(offset int64) {
			if area := FirstBootOffset(options.Disks[0].GetSizeBytes()); offset < area || offset >= area+mebibyte || records > 0 {
				return
			}
			records++
			if now, err := os.ReadFile(m.disk); err != nil || len(bytes.Trim(now[:mebibyte], "\x00")) > 0 {
				t.Errorf("a record is written to a disk that boots: %v", err)
			}
		}}
	}
	if report := Run(t.Context(), request, options); !report.GetOk() || records == 0 {
		t.Errorf("%d records, %v", records, report)
	}
}

// watched is a medium that tells where something is written.
type watched struct {
	medium
	at func(offset int64)
}

func (w watched) WriteAt(p []byte, offset int64) (int, error) {
	w.at(offset)
	return w.medium.WriteAt(p, offset)
}

func overwrite(t *testing.T, path string, offset int64, data []byte) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if _, err := file.WriteAt(data, offset); err != nil {
		t.Fatal(err)
	}
}

// TestAreasOfATable: no table makes an install be looked for outside of the disk, or behind where
// it would be written. Of several partitions like that of the area the last one counts.
func TestAreasOfATable(t *testing.T) {
	t.Parallel()
	const size, area = 64 * mebibyte, 62 * mebibyte
	whole := uint64(mebibyte / gptSector)
	for name, test := range map[string]struct {
		partitions []partition
		older      int64
	}{
		"none":                        {nil, 0},
		"one":                         {[]partition{{kind: typeReserved, first: 10 * whole, last: 11*whole - 1}}, 10 * mebibyte},
		"two":                         {[]partition{{kind: typeReserved, first: 20 * whole, last: 21*whole - 1}, {kind: typeReserved, first: 10 * whole, last: 11*whole - 1}}, 20 * mebibyte},
		"of another kind":             {[]partition{{kind: typeData, first: 10 * whole, last: 11*whole - 1}}, 0},
		"of another size":             {[]partition{{kind: typeReserved, first: 10 * whole, last: 12*whole - 1}}, 0},
		"where it would be":           {[]partition{{kind: typeReserved, first: 62 * whole, last: 63*whole - 1}}, 0},
		"an image's, and the disk's":  {[]partition{{kind: typeReserved, first: 10 * whole, last: 11*whole - 1}, {kind: typeReserved, first: 62 * whole, last: 63*whole - 1}}, 0},
		"behind the disk":             {[]partition{{kind: typeReserved, first: 100 * whole, last: 101*whole - 1}}, 0},
		"at the end of all numbers":   {[]partition{{kind: typeReserved, first: -whole, last: 1<<64 - 1}}, 0},
		"beyond what an offset holds": {[]partition{{kind: typeReserved, first: 1 << 55, last: 1<<55 + whole - 1}}, 0},
	} {
		head := bytes.Clone(partitioned(t)[:mebibyte])
		table, err := readTable(head, gptSector)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range test.partitions {
			if err := table.add(p, ""); err != nil {
				t.Fatal(err)
			}
		}
		table.move(size, area/gptSector-1)
		want := []int64{area}
		if test.older > 0 {
			want = append(want, test.older)
		}
		if got, _, err := areasOf(bytes.NewReader(head), size); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, want)
		}
	}
}
