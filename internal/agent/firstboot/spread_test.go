package firstboot

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// TestARootThatGrewOverAnotherDiskKeepsItsArea: somebody adds a disk to the volume group of a
// watched system. That disk holds the area of an older install of the machine. A call in its name
// is refused for ever, or is the last one.
func TestARootThatGrewOverAnotherDiskKeepsItsArea(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// own and other are the partitions of the system's disk and of the added one, after that.
		own, other []uint32
		// unmarked: the first boot was begun by a version that did not write down of which install.
		unmarked bool
	}{
		"a disk with other partitions now":           {own: []uint32{2048}, other: []uint32{6144}},
		"a partition of a disk, and its own changed": {own: []uint32{6144}, other: []uint32{8192}},
		"first booted by an older version":           {own: []uint32{2048}, other: []uint32{6144}, unmarked: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, s := watchedOnVolume(t)
			if c.unmarked {
				s.write(t, begunFile, "")
			}
			older := proto.CloneOf(s.token)
			older.InstallGeneration = 2
			s.disk(t, "sda", &agentv1.FirstBoot{Token: older, Content: s.partitioned(t, "sda", 8192)})
			s.partitioned(t, "sda", c.other...)
			s.partitioned(t, "sdb", c.own...)
			s.onVolume(t, "sda")
			p.mu.Lock()
			p.reports, p.wanted, p.heard = nil, 0, nil
			p.mu.Unlock()
			if err := s.run(t); err != nil || p.calls() != 1 || p.reports[0].GetInstallGeneration() != 3 {
				t.Errorf("it calls as %v, %v", p.reports, err)
			}
		})
	}
}

// TestASystemWithoutItsAreaCallsAsNoOther: the disk with the area that a watched system has begun
// with cannot be read, or is gone. Another disk of the volume group has that of another machine.
// The unit fails, so that somebody sees it.
func TestASystemWithoutItsAreaCallsAsNoOther(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		loses string
		other uint32 // where the other disk has its partition; that of the other machine was at 8192
		after int64  // how many seconds after this install that of the other machine was asked for
		says  string
	}{
		"it cannot be read":                             {"dev/sdb", 6144, 60, "look for the first-boot area of sdb: "},
		"nor that of a machine that is on the disk yet": {"dev/sdb", 8192, 60, "look for the first-boot area of sdb: "},
		"it is gone":                                    {"sys/devices/virtual/block/dm-0/slaves/sdb2", 6144, 60, "is on none of the disks of the root file system any more ([sda])"},
		"and that of a machine that is on the disk yet is older": {"sys/devices/virtual/block/dm-0/slaves/sdb2", 8192, -60, "any more ([sda])"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, s := watchedOnVolume(t)
			another := proto.CloneOf(s.token)
			another.MachineId, another.InstallGeneration = "m-another", 7
			another.MadeAt.Seconds += c.after
			s.disk(t, "sda", &agentv1.FirstBoot{Token: another, Content: s.partitioned(t, "sda", 8192)})
			s.partitioned(t, "sda", c.other)
			s.onVolume(t, "sda")
			if err := os.Remove(filepath.Join(s.root, c.loses)); err != nil {
				t.Fatal(err)
			}
			before := p.calls()
			if err := s.run(t); err == nil || !strings.Contains(err.Error(), c.says) || p.calls() != before {
				t.Errorf("it calls as %v, %v", p.reports[before:], err)
			}
		})
	}
}

// TestAnAreaThatIsOverwrittenIsMissed: the root has grown over it. The system was installed,
// though, and does not call any more.
func TestAnAreaThatIsOverwrittenIsMissed(t *testing.T) {
	t.Parallel()
	for name, begun := range map[string]bool{"watched": false, "its first boot cut short": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, s := watchedOnVolume(t)
			if begun {
				if err := errors.Join(os.Remove(filepath.Join(s.root, doneFile)), os.Remove(filepath.Join(s.root, watchedFile))); err != nil {
					t.Fatal(err)
				}
			}
			s.disk(t, "sdb", nil)
			before := p.calls()
			if err := s.run(t); err == nil || !strings.Contains(err.Error(), "any more ([sdb])") || p.calls() != before {
				t.Errorf("it calls as %v, %v", p.reports[before:], err)
			}
			s.disk(t, "sdb", &agentv1.FirstBoot{Token: s.token, Content: s.partitioned(t, "sdb", 2048)})
			if err := s.run(t); err != nil || p.calls() != before+1 {
				t.Errorf("when it is there again: %d calls, %v", p.calls()-before, err)
			}
		})
	}
}

// TestRootDisksOfABtrfs: mountinfo names one device of it.
func TestRootDisksOfABtrfs(t *testing.T) {
	t.Parallel()
	s := newSystem(t, newPlane(t, 0), "")
	s.write(t, "sys/devices/sda/sda3/partition", "3\n")
	s.link(t, "../../../../devices/sda/sda3", "sys/fs/btrfs/uuid/devices/sda3")
	s.link(t, "../../../../devices/sdb/sdb2", "sys/fs/btrfs/uuid/devices/sdb2")
	s.link(t, "../../../../devices/sdc", "sys/fs/btrfs/another/devices/sdc")
	if got := rootDisks(s.root); !slices.Equal(got, []string{"sda", "sdb"}) {
		t.Errorf("got %v", got)
	}
}

// watchedOnVolume is a watched system on a logical volume of disk sdb. It has called twice, and is
// off.
func watchedOnVolume(t *testing.T) (*plane, *system) {
	t.Helper()
	p := newPlane(t, 0)
	s := newSystem(t, p, "")
	s.token.MadeAt = &timestamppb.Timestamp{Seconds: 1_000_000}
	s.onVolume(t, "sdb/sdb2")
	s.disk(t, "sdb", &agentv1.FirstBoot{Token: s.token, Content: s.partitioned(t, "sdb", 2048)})
	s.partitioned(t, "sdb", 2048)
	ctx, powerOff := context.WithCancel(t.Context())
	p.wanted, p.heard = 2, func(n int) {
		if n == 2 {
			powerOff()
		}
	}
	if err := s.runUntil(ctx); err != nil {
		t.Fatal(err)
	}
	return p, s
}

// onVolume puts the root file system on a logical volume, if it is on none, and a device below it.
func (s *system) onVolume(t *testing.T, device string) {
	t.Helper()
	volume := "sys/devices/virtual/block/dm-0"
	if !isThere(s.root + "/sys/dev/block/253:0") {
		s.write(t, "proc/self/mountinfo", "22 1 253:0 / / rw - ext4 /dev/mapper/root rw\n")
		s.link(t, "../../devices/virtual/block/dm-0", "sys/dev/block/253:0")
	}
	s.link(t, "../../../../"+device, volume+"/slaves/"+filepath.Base(device))
}
