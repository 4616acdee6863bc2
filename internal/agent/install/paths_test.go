package install

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// manyPaths is a machine with one disk, to which sdc leads. Its other paths, sda and sdb, and all
// paths to a second disk, sdd and sde, are dead: a directory can be opened, and fails to be read.
func manyPaths(t *testing.T) (*machine, Options) {
	t.Helper()
	m := newMachine(t)
	at := func(name string) string { return filepath.Join(m.root, "dev", name) }
	if err := os.Rename(m.disk, at("sdc")); err != nil {
		t.Fatal(err)
	}
	m.disk = at("sdc")
	for _, name := range []string{"sda", "sdb", "sdd", "sde"} {
		if err := os.Mkdir(at(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	options := m.options()
	options.MachineID = "m"
	options.Disks = []*agentv1.BlockDevice{
		{Name: "sda", Serial: "S1", Wwn: "0x1", SizeBytes: diskSize, OtherPaths: []string{"sdb", "sdc"}},
		{Name: "sdd", Serial: "S2", Wwn: "0x2", SizeBytes: diskSize, OtherPaths: []string{"sde"}},
	}
	return m, options
}

// TestADeadPathIsNotTheDisk: a disk is read and written by the first path to it that can be read.
// One without such a path is not written.
func TestADeadPathIsNotTheDisk(t *testing.T) {
	t.Parallel()
	image := testImage(9, 3*mebibyte)
	m, options := manyPaths(t)
	request := requestFor(serveBytes(t, image), image)
	request.RootDisk = &agentv1.DiskSelector{Serial: "S2"}
	want := "nothing is written to /dev/sdd, because what it holds cannot be read"
	if report := Run(t.Context(), request, options); report.GetOk() || !strings.Contains(report.GetError(), want) || report.GetDisk() != "" {
		t.Errorf("all its paths are dead: %v", report)
	}
	request.RootDisk = &agentv1.DiskSelector{Serial: "S1"}
	if report := Run(t.Context(), request, options); !report.GetOk() || report.GetDisk() != "/dev/sdc" || report.GetDiskSerial() != "S1" {
		t.Errorf("report: %v", report)
	}
	checkInstalled(t, m, image, request)
	if name := options.Disks[0].GetName(); name != "sda" {
		t.Errorf("the disk of the caller is called %s now", name)
	}
}

// TestADeadPathHidesNoInstall: what a disk holds counts by whatever path it is read, also where it
// is not the disk that is to be written.
func TestADeadPathHidesNoInstall(t *testing.T) {
	t.Parallel()
	image := testImage(9, 3*mebibyte)
	m, options := manyPaths(t)
	area, err := EncodeFirstBoot(&agentv1.FirstBoot{Token: &agentv1.BootToken{MachineId: "m", InstallGeneration: 4, Attempt: 1}})
	if err != nil {
		t.Fatal(err)
	}
	held := bytes.Clone(m.old)
	copy(held[FirstBootOffset(diskSize):], area)
	if err := os.WriteFile(m.disk, held, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.root, "dev/sdf"), m.old, 0o600); err != nil {
		t.Fatal(err)
	}
	options.Disks = append(options.Disks, &agentv1.BlockDevice{Name: "sdf", Serial: "S3", SizeBytes: diskSize})
	for _, serial := range []string{"S1", "S3"} {
		request := requestFor(serveBytes(t, image), image)
		request.RootDisk = &agentv1.DiskSelector{Serial: serial, Erase: true}
		report := Run(t.Context(), request, options)
		if report.GetOk() || report.GetHeldInstallGeneration() != 4 || !strings.HasPrefix(report.GetError(), "/dev/sdc holds install generation 4") {
			t.Errorf("%s: %v", serial, report)
		}
		if report := Refused(request, options); report.GetHeldInstallGeneration() != 4 {
			t.Errorf("%s, before a jump: %v", serial, report)
		}
	}
	if now, err := os.ReadFile(m.disk); err != nil || !bytes.Equal(now, held) {
		t.Errorf("the disk was touched: %v", err)
	}
}

// TestPathsThatHang: a path may be silent for ever. Another one is read then, and all of them
// together take no longer than one disk may: a look before a jump waits no longer, and what it had
// found would be lost.
func TestPathsThatHang(t *testing.T) {
	t.Parallel()
	dead := errors.New("dead")
	holds := mark{held: &agentv1.FirstBoot{}}
	disk := func(name string, others ...string) *agentv1.BlockDevice {
		return &agentv1.BlockDevice{Name: name, SizeBytes: diskSize, OtherPaths: others}
	}
	for name, test := range map[string]struct {
		disk *agentv1.BlockDevice
		// path is how it is called then, took how long that takes, and err why it cannot be read.
		path string
		took time.Duration
		err  error
	}{
		"the first answers":                 {disk("ok", "hangs"), "ok", 0, nil},
		"the first is slow":                 {disk("slow", "hangs"), "slow", readLimit * 2 / 3, nil},
		"the first hangs":                   {disk("hangs", "ok"), "ok", readLimit / 2, nil},
		"the first hangs, the next is dead": {disk("hangs", "dead", "ok"), "ok", readLimit / 3, nil},
		"all but the last hang":             {disk("hangs", "hangs2", "hangs3", "ok"), "ok", readLimit * 3 / 4, nil},
		"both hang":                         {disk("hangs", "hangs2"), "hangs", readLimit, errLate},
		"one hangs, the other is dead":      {disk("dead", "hangs"), "dead", readLimit, errLate},
		"one brings a fault to light":       {disk("fault", "ok"), "ok", readLimit / 2, nil},
		"all are dead":                      {disk("dead", "dead2"), "dead", 0, dead},
		"the only one hangs":                {disk("hangs"), "hangs", readLimit, errLate},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				defer close(release)
				began := time.Now()
				disks, found := readDisks([]*agentv1.BlockDevice{disk("beside"), test.disk}, func(d *agentv1.BlockDevice) mark {
					switch name := d.GetName(); {
					case strings.HasPrefix(name, "hangs"):
						<-release
					case name == "slow":
						time.Sleep(readLimit * 2 / 3)
					case name == "fault":
						panic("index out of range")
					case strings.HasPrefix(name, "dead"):
						return mark{err: dead}
					}
					return holds
				})
				if took := time.Since(began); took != test.took {
					t.Errorf("it took %s, want %s", took, test.took)
				}
				if got := found[test.path]; disks[1].GetName() != test.path || !errors.Is(got.err, test.err) || (got.held != nil) != (test.err == nil) {
					t.Errorf("%s: %v", disks[1], got)
				}
				if found["beside"].held == nil || len(disks) != 2 {
					t.Errorf("the disk beside it: %v", found)
				}
			})
		})
	}
}
