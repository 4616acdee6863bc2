package install

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
