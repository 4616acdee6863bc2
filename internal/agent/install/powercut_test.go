package install

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// journal keeps what is done to a medium, in order.
type journal struct {
	medium
	mu  sync.Mutex
	ops []operation
}

// operation is a write, or a sync where it has no data.
type operation struct {
	offset int64
	data   []byte
}

func (j *journal) add(o operation) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ops = append(j.ops, o)
}

func (j *journal) WriteAt(p []byte, offset int64) (int, error) {
	n, err := j.medium.WriteAt(p, offset)
	j.add(operation{offset, bytes.Clone(p[:n])})
	return n, err
}

func (j *journal) Zero(mode uint32, offset, length int64) error {
	err := j.medium.Zero(mode, offset, length)
	if err == nil {
		j.add(operation{offset, make([]byte, length)})
	}
	return err
}

func (j *journal) Sync() error {
	j.add(operation{})
	return j.medium.Sync()
}

// sector is what a disk writes whole or not at all.
const sector = 512

// lose applies to a disk what was written since the last sync, as a power cut leaves it: each
// operation whole, not at all, or some of its sectors.
func lose(random *rand.Rand, disk []byte, pending []operation) {
	survives := random.IntN(3) // most of it, half of it, little of it
	for _, o := range pending {
		switch keep := random.IntN(4) - survives; {
		case keep >= 1:
			copy(disk[o.offset:], o.data)
		case keep == 0:
			for at := 0; at < len(o.data); at += sector {
				if random.IntN(2) == 0 {
					copy(disk[o.offset+int64(at):], o.data[at:min(at+sector, len(o.data))])
				}
			}
		}
	}
}

// gptDisk is a disk full of old data with a partition table at its beginning and its end.
func gptDisk(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, bytes.Repeat([]byte("old data"), deviceSize/8), 0o600); err != nil {
		t.Fatal(err)
	}
	tool(t, "label: gpt\nstart=2048, type=L, name=root\n", "sfdisk", "--quiet", "--wipe=never", path)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content[0] = 0xeb // code
	return content
}

// TestPowerCut takes the power away at any moment of an install, with any part of what was not
// synced lost. What is found by a firmware is either the old system with all its data, or the new
// one with all of its own: in between nothing boots. Nothing that an install leaves is foreign to
// the next one, which need not be allowed to erase it.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	image := partitioned(t)
	for i := 4 * mebibyte; i < 6*mebibyte; i++ {
		image[i] = byte(i >> 3 * 7) // data that no hole is
	}
	t.Run("foreign disk that may be erased", func(t *testing.T) {
		t.Parallel()
		cutPower(t, gptDisk(t), image, true)
	})
	t.Run("older install", func(t *testing.T) {
		t.Parallel()
		d := newDevice(t, make([]byte, deviceSize))
		older := cutRequest(t, image)
		older.InstallGeneration--
		older.BootToken.InstallGeneration--
		if report := Run(t.Context(), older, d.options()); !report.GetOk() {
			t.Fatal(report.GetError())
		}
		newer := bytes.Clone(image)
		for i := 4 * mebibyte; i < 6*mebibyte; i++ {
			newer[i] ^= 0xff
		}
		cutPower(t, d.content(t), newer, false)
	})
}

func cutRequest(t *testing.T, image []byte) *agentv1.InstallRequest {
	t.Helper()
	request := requestFor(serveBytes(t, compress(t, image, agentv1.Compression_COMPRESSION_ZSTD)), image)
	request.BootToken.InstallGeneration, request.BootToken.Attempt = request.GetInstallGeneration(), request.GetAttempt()
	request.Image.Compression = agentv1.Compression_COMPRESSION_ZSTD
	request.RootDisk = &agentv1.DiskSelector{Grow: true}
	request.Image.FirstBootForm = agentv1.FirstBootForm_FIRST_BOOT_FORM_NOCLOUD
	return request
}

// cutPower installs the image on a disk with that content, which is foreign if it needs to be
// erased, and cuts the power.
func cutPower(t *testing.T, old, image []byte, erase bool) {
	t.Helper()
	cuts := 200
	if raceDetector {
		cuts = 80
	}
	d := newDevice(t, old)
	request := cutRequest(t, image)
	request.RootDisk.Erase = erase
	options := d.options()
	j := new(journal)
	options.medium = func(m medium) medium {
		j.medium = m
		return j
	}
	if report := Run(t.Context(), request, options); !report.GetOk() {
		t.Fatal(report.GetError())
	}
	final := d.content(t)
	if replayed := bytes.Clone(old); !bytes.Equal(replay(replayed, j.ops), final) {
		t.Fatal("the journal does not hold all that was written")
	}
	area := FirstBootOffset(int64(len(final)))
	if records := final[area+begunSlots[0] : area+mebibyte]; bytes.Count(records, []byte{0}) != len(records) {
		t.Fatal("an install that has ended leaves a record of one that has begun")
	}

	random := rand.New(rand.NewPCG(14, 3))
	at := make([]int, cuts)
	for i := range at {
		at[i] = random.IntN(len(j.ops) + 1)
	}
	// Each moment near the beginning and the end of the install counts; most moments lie between.
	for i := range 30 {
		at[i], at[30+i] = min(i, len(j.ops)), max(0, len(j.ops)-i)
	}
	slices.Sort(at)
	durable, synced, syncs := bytes.Clone(old), 0, 0
	disk := bytes.Clone(old) // durable, but while a cut is looked at
	recorded := 1            // by the first sync; what is foreign is wiped before
	if erase {
		recorded = 2
	}
	seen := map[string]int{}
	for _, cut := range at {
		for i := cut - 1; i >= synced; i-- {
			if j.ops[i].data == nil {
				for _, o := range j.ops[synced : i+1] {
					if o.data == nil {
						syncs++
					}
				}
				replay(durable, j.ops[synced:i])
				replay(disk, j.ops[synced:i])
				synced = i + 1
			}
		}
		pending := j.ops[synced:cut]
		lose(random, disk, pending)
		what := outcome(t, disk, old, final, erase)
		if what == "" {
			t.Fatalf("after operation %d of %d the disk boots, and is neither the old system nor the new one", cut, len(j.ops))
		}
		seen[what]++
		m := readMarkOf(t, disk)
		if generation := m.generation(options.MachineID); syncs >= recorded && generation != request.GetInstallGeneration() {
			t.Fatalf("after operation %d of %d (synced: %d) the next attempt may write another disk: this one is said to be of generation %d",
				cut, len(j.ops), synced, generation)
		}
		if !erase || synced > 0 { // else it was foreign before
			if found, _, err := foreign(bytes.NewReader(disk), d.size, options.MachineID, 0); err != nil || len(found) > 0 {
				t.Fatalf("after operation %d of %d (synced: %d) the next attempt is refused: %q, %v", cut, len(j.ops), synced, found, err)
			}
		}
		for _, o := range pending {
			copy(disk[o.offset:], durable[o.offset:o.offset+int64(len(o.data))])
		}
	}
	t.Logf("%d power cuts in %d operations: %v", cuts, len(j.ops), seen)
	for _, what := range []string{bootsOld, bootsNothing, bootsNew} {
		if seen[what] == 0 {
			t.Errorf("no power cut led to: %s", what)
		}
	}
}

func readMarkOf(t *testing.T, disk []byte) (m mark) {
	t.Helper()
	var err error
	if m.held, m.finished, err = findHeld(bytes.NewReader(disk), int64(len(disk))); err != nil {
		t.Fatal(err)
	}
	if m.begun, err = readBegun(bytes.NewReader(disk), int64(len(disk))); err != nil {
		t.Fatal(err)
	}
	return m
}

func replay(disk []byte, ops []operation) []byte {
	for _, o := range ops {
		copy(disk[o.offset:], o.data)
	}
	return disk
}

const (
	bootsOld     = "the old system or nothing, all its data are there"
	bootsNew     = "the new system or nothing, all its data are there"
	bootsNothing = "nothing"
)

// outcome says what a disk may boot. Empty: something that is not whole. The records of an install
// that has begun belong to nobody's data, unless the disk was foreign.
func outcome(t *testing.T, disk, old, final []byte, foreign bool) string {
	t.Helper()
	area := FirstBootOffset(int64(len(disk)))
	same := func(a, b []byte, from, to int64) bool { return bytes.Equal(a[from:to], b[from:to]) }
	inside := func(a, b []byte, records bool) bool {
		return same(a, b, mebibyte, area+begunSlots[0]) && same(a, b, area+mebibyte, int64(len(a))-mebibyte) &&
			(!records || same(a, b, area+begunSlots[0], area+mebibyte))
	}
	found, err := contents(bytes.NewReader(disk), int64(len(disk)))
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case len(found) == 0 && !bytes.Equal(disk[510:512], []byte{0x55, 0xaa}):
		return bootsNothing
	case inside(disk, old, foreign):
		return bootsOld
	case inside(disk, final, false):
		return bootsNew
	}
	t.Log(fmt.Sprint("found: ", found))
	return ""
}
