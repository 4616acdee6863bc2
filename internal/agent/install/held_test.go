package install

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// TestHeldDisk is the last fence: what a disk holds of this machine is overwritten only by a newer
// install, or by the running system that wrote it itself.
func TestHeldDisk(t *testing.T) {
	t.Parallel()
	image := testImage(9, 3*mebibyte)
	type id struct {
		generation int64
		attempt    int32
	}
	tests := map[string]struct {
		machine  string // whom the install on the disk is of
		held     id
		wanted   id
		first    id // that wrote since the host booted
		unbooted bool
		refused  bool
	}{
		"the same install":                       {"m", id{3, 1}, id{3, 1}, id{}, false, true},
		"the same, although it wrote before":     {"m", id{3, 1}, id{3, 1}, id{3, 1}, false, true},
		"an earlier attempt of another boot":     {"m", id{3, 1}, id{3, 2}, id{}, false, true},
		"the same once more":                     {"m", id{3, 1}, id{3, 3}, id{3, 2}, false, true},
		"a later attempt than is asked for":      {"m", id{3, 4}, id{3, 1}, id{}, false, true},
		"an earlier attempt of this very system": {"m", id{3, 1}, id{3, 2}, id{2, 1}, false, false},
		"its first attempt":                      {"m", id{3, 2}, id{3, 3}, id{3, 2}, false, false},
		"a higher install":                       {"m", id{4, 1}, id{3, 1}, id{3, 1}, false, true},
		"a higher one of this very system":       {"m", id{4, 1}, id{3, 1}, id{4, 1}, false, true},
		"a lower install":                        {"m", id{2, 9}, id{3, 1}, id{3, 1}, false, false},
		"of another machine":                     {"other", id{9, 1}, id{3, 1}, id{3, 1}, false, false},
		"that nobody has counted to":             {"m", id{1<<40 + 1, 1}, id{3, 1}, id{}, false, false},
		"of an attempt that cannot be":           {"m", id{3, -1}, id{3, 1}, id{}, false, false},
		"it was not finished":                    {"m", id{3, 1}, id{3, 2}, id{}, true, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			area, err := EncodeFirstBoot(&agentv1.FirstBoot{Token: &agentv1.BootToken{
				MachineId: test.machine, InstallGeneration: test.held.generation, Attempt: test.held.attempt,
			}})
			if err != nil {
				t.Fatal(err)
			}
			target, err := openDisk(m.root, "sda", diskSize)
			if err != nil {
				t.Fatal(err)
			}
			defer target.close()
			if err := target.write(area, FirstBootOffset(diskSize)); err != nil {
				t.Fatal(err)
			}
			if test.unbooted {
				if err := target.makeZero(0, mebibyte); err != nil {
					t.Fatal(err)
				}
			}
			before := m.content(t)
			request := requestFor(serveBytes(t, image), image)
			request.InstallGeneration, request.Attempt = test.wanted.generation, test.wanted.attempt
			options := m.options()
			options.MachineID, options.FirstGeneration, options.FirstAttempt = "m", test.first.generation, test.first.attempt
			report := Run(t.Context(), request, options)
			if !test.refused {
				if !report.GetOk() || report.GetHeldInstallGeneration() != 0 {
					t.Errorf("report: %v", report)
				}
				return
			}
			if report.GetOk() || !strings.Contains(report.GetError(), "/dev/sda holds install generation") ||
				report.GetHeldInstallGeneration() != test.held.generation || report.GetHeldAttempt() != test.held.attempt {
				t.Errorf("report: %v", report)
			}
			if !bytes.Equal(m.content(t), before) {
				t.Error("the disk was touched")
			}
		})
	}
}

// TestNothingIsWrittenUnlessItMayBegin: an agent that was superseded must not write.
func TestNothingIsWrittenUnlessItMayBegin(t *testing.T) {
	t.Parallel()
	image := testImage(9, 3*mebibyte)
	m := newMachine(t)
	options := m.options()
	options.Begin = func(context.Context, *agentv1.BegunDisk) error { return errors.New("a newer takeover") }
	report := Run(t.Context(), requestFor(serveBytes(t, image), image), options)
	if report.GetOk() || !strings.Contains(report.GetError(), "a newer takeover") || !bytes.Equal(m.content(t), m.old) {
		t.Errorf("report: %v", report)
	}
}

// brokenDisk fails every read from an offset on, as a disk with unreadable sectors does.
type brokenDisk struct {
	*bytes.Reader
	from, to int64
}

func (d brokenDisk) ReadAt(p []byte, offset int64) (int, error) {
	if offset < d.to && offset+int64(len(p)) > d.from {
		return 0, unix.EIO
	}
	return d.Reader.ReadAt(p, offset)
}

func TestADiskThatCannotBeReadIsNotTakenForEmpty(t *testing.T) {
	t.Parallel()
	content, offset := make([]byte, diskSize), FirstBootOffset(diskSize)
	area, err := EncodeFirstBoot(&agentv1.FirstBoot{Token: &agentv1.BootToken{MachineId: "m", InstallGeneration: 3}})
	if err != nil {
		t.Fatal(err)
	}
	copy(content[offset:], area)
	content[0] = 1
	for name, broken := range map[string]brokenDisk{
		"the area":         {from: offset, to: offset + 1},
		"the boot sectors": {from: 0, to: 512},
	} {
		broken.Reader = bytes.NewReader(content)
		if held, _, err := findHeld(broken, diskSize); held != nil || !errors.Is(err, unix.EIO) {
			t.Errorf("%s: %v, %v", name, held, err)
		}
	}
	if held, finished, err := findHeld(bytes.NewReader(content), diskSize); held == nil || !finished || err != nil {
		t.Errorf("without a fault: %v, %v", held, err)
	}
	behind := brokenDisk{Reader: bytes.NewReader(content), from: offset + int64(MaxFirstBootArea), to: diskSize}
	if held, finished, err := findHeld(behind, diskSize); held == nil || !finished || err != nil {
		t.Errorf("a fault behind the area: %v, %v", held, err)
	}
	if held, _, err := findHeld(bytes.NewReader(nil), diskSize); held != nil || err != nil {
		t.Errorf("a file that was never written: %v, %v", held, err)
	}
}

// TestNothingIsWrittenToADiskThatCannotBeRead: the report is of a failure that is tried again, not
// of an install that is held, and names no disk as written. Another disk that cannot be read is no
// obstacle.
func TestNothingIsWrittenToADiskThatCannotBeRead(t *testing.T) {
	t.Parallel()
	image := testImage(9, 3*mebibyte)
	m := newMachine(t)
	// A directory can be opened, and fails to be read.
	if err := os.Mkdir(filepath.Join(m.root, "dev/sdb"), 0o700); err != nil {
		t.Fatal(err)
	}
	options := m.options()
	options.MachineID = "m"
	options.Disks = append(options.Disks, &agentv1.BlockDevice{Name: "sdb", Serial: "S2", SizeBytes: diskSize})
	request := requestFor(serveBytes(t, image), image)
	request.RootDisk = &agentv1.DiskSelector{Serial: "S2"}
	report := Run(t.Context(), request, options)
	if report.GetOk() || report.GetHeldInstallGeneration() != 0 || report.GetDisk() != "" ||
		!strings.Contains(report.GetError(), "nothing is written to /dev/sdb, because what it holds cannot be read") {
		t.Errorf("the disk that is asked for: %v", report)
	}
	request.RootDisk = &agentv1.DiskSelector{Serial: "S1"}
	if report := Run(t.Context(), request, options); !report.GetOk() {
		t.Errorf("beside it: %v", report)
	}
}

// TestHeldOnAUSBDisk: a disk that is only chosen by name is fenced like any other.
func TestHeldOnAUSBDisk(t *testing.T) {
	t.Parallel()
	image := testImage(9, 3*mebibyte)
	m := newMachine(t)
	area, err := EncodeFirstBoot(&agentv1.FirstBoot{Token: &agentv1.BootToken{MachineId: "m", InstallGeneration: 4, Attempt: 1}})
	if err != nil {
		t.Fatal(err)
	}
	other := bytes.Clone(m.old)
	copy(other[FirstBootOffset(diskSize):], area)
	if err := os.WriteFile(filepath.Join(m.root, "dev/sdb"), other, 0o600); err != nil {
		t.Fatal(err)
	}
	options := m.options()
	options.MachineID = "m"
	options.Disks = append(options.Disks, &agentv1.BlockDevice{Name: "sdb", Serial: "S2", SizeBytes: diskSize, Protocol: "usb"})
	report := Run(t.Context(), requestFor(serveBytes(t, image), image), options)
	if report.GetOk() || report.GetHeldInstallGeneration() != 4 || !bytes.Equal(m.content(t), m.old) {
		t.Errorf("report: %v", report)
	}
}

// A disk that keeps whoever reads it, and one that brings a fault of the agent to light, keep
// nobody from what the others hold.
func TestDiskThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		names := []string{"sda", "sdb", "sdc", "sdd"}
		began := time.Now()
		found, late := readAll(names, func(name string) string {
			switch name {
			case "sdb":
				<-release
			case "sdc":
				panic("index out of range")
			}
			return "of " + name
		})
		if took := time.Since(began); took != readLimit {
			t.Errorf("it took %s", took)
		}
		if len(found) != 2 || found["sda"] != "of sda" || found["sdd"] != "of sdd" || !slices.Equal(late, []string{"sdb", "sdc"}) {
			t.Errorf("found %v, late %v", found, late)
		}
		close(release)
		began = time.Now()
		if found, late = readAll(names[:1], func(string) string { return "" }); len(found) != 1 || len(late) > 0 || time.Since(began) > 0 {
			t.Errorf("found %v, late %v after %s", found, late, time.Since(began))
		}
	})
}

// TestOneOfManyPartitionsIsLeft: the area is not replaced.
func TestOneOfManyPartitionsIsLeft(t *testing.T) {
	t.Parallel()
	disk := partitioned(t)
	first := &agentv1.FirstBoot{Content: &agentv1.DiskContent{Partitions: partitionsOf(disk[:mebibyte])[:1]}}
	for n := range maxPartitions - 1 {
		first.Content.Partitions = append(first.Content.Partitions, []byte{byte(n)})
	}
	area := &FirstBootArea{First: first}
	if err := area.Look(bytes.NewReader(disk), int64(len(disk))); err != nil || area.Replaced {
		t.Errorf("it is replaced: %v, %v", area.Replaced, err)
	}
}
