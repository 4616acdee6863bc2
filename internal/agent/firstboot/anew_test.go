package firstboot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/install"
)

// installed is a system that was installed, and is done with its first boot. It has called twice
// and is off where it is watched.
func installed(t *testing.T, watched bool) (*plane, *system) {
	t.Helper()
	return installedOn(t, watched, false)
}

// installedOn is one whose disk may have a partition for the first-boot area.
func installedOn(t *testing.T, watched, reserved bool) (*plane, *system) {
	t.Helper()
	p := newPlane(t, 0)
	s := newSystem(t, p, "")
	s.reserved = reserved
	s.token.MadeAt = &timestamppb.Timestamp{Seconds: 1_000_000}
	s.disk(t, "sdb", &agentv1.FirstBoot{
		Token: s.token, Data: []byte("#!/bin/sh\necho first >>runs\n"), SshHostKey: &agentv1.SshHostKey{Public: "ssh-ed25519 FIRST", Private: []byte("first")},
		Content: s.partitioned(t, "sdb", 2048),
	})
	s.partitioned(t, "sdb", 2048)
	ctx, powerOff := context.WithCancel(t.Context())
	defer powerOff()
	if watched {
		p.wanted, p.heard = 2, func(n int) {
			if n == 2 {
				powerOff()
			}
		}
	}
	if err := s.runUntil(ctx); err != nil || s.read(t, "runs") != "first\n" {
		t.Fatal(err)
	}
	p.mu.Lock() // the call at which the power was cut may not have ended
	defer p.mu.Unlock()
	p.reports, p.wanted, p.heard = nil, 0, nil
	return p, s
}

// installAgain is an install of the system's image on sdb, of a later one or an earlier one, that
// has the partitions of the image.
func (s *system) installAgain(t *testing.T, machine string, after int64) {
	t.Helper()
	token := proto.CloneOf(s.token)
	token.MachineId, token.InstallGeneration = machine, 4
	token.MadeAt.Seconds += after
	s.disk(t, "sdb", &agentv1.FirstBoot{
		Token: token, Data: []byte("#!/bin/sh\necho second >>runs\n"), SshHostKey: &agentv1.SshHostKey{Public: "ssh-ed25519 SECOND", Private: []byte("second")},
		Content: s.partitioned(t, "sdb", 2048),
	})
	s.partitioned(t, "sdb", 2048)
}

// take has another system begin its first boot with the install on a disk.
func (s *system) take(t *testing.T, name string) {
	t.Helper()
	path := filepath.Join(s.root, "dev", name)
	area, err := read(path)
	if err == nil {
		err = area.Take(path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// moved has the root of the system on sdb, on which there is the later install of another machine
// that is like what edit makes of it.
func (s *system) moved(t *testing.T, edit func(first *agentv1.FirstBoot)) {
	t.Helper()
	token := proto.CloneOf(s.token)
	token.MachineId, token.MadeAt.Seconds = "m-another", token.GetMadeAt().GetSeconds()+60
	first := &agentv1.FirstBoot{Token: token, Content: s.partitioned(t, "sdb", 2048)}
	edit(first)
	s.disk(t, "sdb", first)
	s.partitioned(t, "sdb", 2048)
}

// TestASystemThatCameWithAnImageBeginsAnew: the image was read from the disk of a system that was
// done with its first boot, or had begun with it. What that has left is of another install: the
// data is taken over and run, and the host key is, before the system calls.
func TestASystemThatCameWithAnImageBeginsAnew(t *testing.T) {
	t.Parallel()
	left := func(files ...string) func(t *testing.T, s *system) {
		return func(t *testing.T, s *system) {
			t.Helper()
			for _, file := range files {
				if err := os.Remove(filepath.Join(s.root, file)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	cutShort := func(t *testing.T, s *system) {
		t.Helper()
		left(doneFile)(t, s)
		s.write(t, ranFile, started)
	}
	for name, c := range map[string]struct {
		watched bool
		machine string
		// then is what happens to the system before its disk is read.
		then func(t *testing.T, s *system)
	}{
		"another machine":                      {machine: "m-another"},
		"the machine itself":                   {machine: "m"},
		"of a watched system":                  {machine: "m-another", watched: true},
		"of one that had not been heard":       {machine: "m-another", then: left(doneFile)},
		"of one whose program was cut short":   {machine: "m-another", then: cutShort},
		"one that had begun to forget":         {machine: "m-another", then: left(doneFile, watchedFile), watched: true},
		"one that had forgotten all but which": {machine: "m-another", then: left(doneFile, ranFile, dataFile)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, s := installed(t, c.watched)
			if c.then != nil {
				c.then(t, s)
			}
			s.installAgain(t, c.machine, 60)
			ranAtFirst := false
			p.heard = func(n int) {
				runs, err := os.ReadFile(filepath.Join(s.root, "runs"))
				ranAtFirst = ranAtFirst || n == 1 && err == nil && string(runs) == "first\nsecond\n"
			}
			for range 2 { // the next boot has nothing to do
				if err := s.run(t); err != nil {
					t.Fatal(err)
				}
			}
			if n := p.calls(); n != 1 || !ranAtFirst || p.reports[0].GetMachineId() != c.machine || p.reports[0].GetInstallGeneration() != 4 {
				t.Errorf("it calls as %v; its program had run: %v", p.reports, ranAtFirst)
			}
			if got := s.read(t, hostKeyFile) + " " + s.read(t, "runs") + s.read(t, dataFile); got != "second first\nsecond\n#!/bin/sh\necho second >>runs\n" {
				t.Errorf("host key, runs and data are %q", got)
			}
			if isThere(filepath.Join(s.root, watchedFile)) {
				t.Error("the next boot goes on calling as the install before was to")
			}
		})
	}
}

// isTaken says whether a system has begun its first boot with the area of sdb.
func (s *system) isTaken(t *testing.T) bool {
	t.Helper()
	area, err := read(filepath.Join(s.root, "dev/sdb"))
	if err != nil {
		t.Fatal(err)
	}
	return area.Taken
}

// TestWhoeverBeginsTakesTheArea: what an install before has left in that place is of that one.
func TestWhoeverBeginsTakesTheArea(t *testing.T) {
	t.Parallel()
	_, s := installedOn(t, false, true)
	if !s.isTaken(t) {
		t.Error("nothing on the disk says that the first boot has begun")
	}
	before := s.read(t, "dev/sdb")
	s.installAgain(t, "m-another", 60)
	// An install that was cut short before its end has left the rest of the area as it was.
	now := []byte(s.read(t, "dev/sdb"))
	behind, end := install.FirstBootOffset(diskSize)+int64(install.MaxFirstBootArea), install.FirstBootOffset(diskSize)+1<<20
	copy(now[behind:end], before[behind:])
	s.write(t, "dev/sdb", string(now))
	if s.isTaken(t) {
		t.Error("the area is taken by a system that has begun with the install before")
	}
	if err := s.run(t); err != nil || !s.isTaken(t) || s.read(t, "runs") != "first\nsecond\n" {
		t.Errorf("%v, taken %v, runs %q", err, s.isTaken(t), s.read(t, "runs"))
	}
}

// TestAnAreaThatIsNoPartition is not written: a file system may have grown over what is behind its
// head.
func TestAnAreaThatIsNoPartition(t *testing.T) {
	t.Parallel()
	for name, reserved := range map[string]bool{"an MBR": false, "the area is not in the table any more": true} {
		_, s := installedOn(t, false, reserved)
		s.installAgain(t, "m-another", 60)
		if reserved {
			s.reserved = false
			s.partitioned(t, "sdb", 2048)
			s.installAgain(t, "m-another", 60)
		}
		before := s.read(t, "dev/sdb")
		if err := s.run(t); err != nil || s.read(t, "runs") != "first\nsecond\n" || s.read(t, "dev/sdb") != before {
			t.Errorf("%s: %v, runs %q, or the disk is written", name, err, s.read(t, "runs"))
		}
	}
}

// TestASystemThatIsCutShortTakesItsArea on its next boot, where it was before it had, and never
// again: it may have changed its partitions since.
func TestASystemThatIsCutShortTakesItsArea(t *testing.T) {
	t.Parallel()
	_, s := installedOn(t, false, true)
	again := func() {
		t.Helper()
		if err := errors.Join(os.Remove(filepath.Join(s.root, doneFile)), s.run(t)); err != nil || s.read(t, "runs") != "first\n" {
			t.Fatalf("%v, runs %q", err, s.read(t, "runs"))
		}
	}
	untaken := []byte(s.read(t, "dev/sdb"))
	behind, end := install.FirstBootOffset(diskSize)+int64(install.MaxFirstBootArea), install.FirstBootOffset(diskSize)+1<<20
	clear(untaken[behind:end])
	s.write(t, "dev/sdb", string(untaken))
	if again(); !s.isTaken(t) {
		t.Error("nothing on the disk says that the first boot has begun")
	}
	path := filepath.Join(s.root, "dev/sdb")
	was := time.Unix(1_000_000, 0)
	if err := os.Chtimes(path, was, was); err != nil {
		t.Fatal(err)
	}
	again()
	if info, err := os.Stat(path); err != nil || !info.ModTime().Equal(was) {
		t.Errorf("the disk was written again: %v", err)
	}
}

// TestADiskThatCannotBeWritten does not keep the system from its first boot. Nothing is written to
// a disk before the system knows its install.
func TestADiskThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	p := newPlane(t, 0)
	s := newSystem(t, p, "data")
	s.reserved = true
	s.partitioned(t, "sdb", 2048)
	if err := os.MkdirAll(filepath.Join(s.root, begunFile, "in the way"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := s.run(t); err != nil || p.calls() != 1 || s.isTaken(t) {
		t.Errorf("%d calls, %v, taken %v", p.calls(), err, s.isTaken(t))
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(s.root, begunFile)), os.Remove(filepath.Join(s.root, doneFile))); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.MemfdCreate("disk", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	disk := os.NewFile(uintptr(fd), "disk")
	defer func() { _ = disk.Close() }()
	if _, err := disk.WriteString(s.read(t, "dev/sdb")); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(disk.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(s.root, "dev/sdb")); err != nil {
		t.Fatal(err)
	}
	s.link(t, fmt.Sprintf("/proc/self/fd/%d", disk.Fd()), "dev/sdb")
	var log strings.Builder
	s.log = &log
	if err := s.run(t); err != nil || p.calls() != 2 || !strings.Contains(log.String(), "cannot be recorded") || s.read(t, begunFile) == "" {
		t.Errorf("%d calls, %v, it warns of %q", p.calls(), err, log.String())
	}
}

// TestWhatAnotherInstallHasBroughtIsGone: an install that brings no data leaves none.
func TestWhatAnotherInstallHasBroughtIsGone(t *testing.T) {
	t.Parallel()
	_, s := installed(t, false)
	token := proto.CloneOf(s.token)
	token.InstallGeneration, token.MadeAt.Seconds = 4, token.GetMadeAt().GetSeconds()+1
	s.disk(t, "sdb", &agentv1.FirstBoot{Token: token, Content: s.partitioned(t, "sdb", 2048)})
	s.partitioned(t, "sdb", 2048)
	if err := s.run(t); err != nil || isThere(filepath.Join(s.root, dataFile)) || isThere(filepath.Join(s.root, dataFile+".log")) {
		t.Errorf("the data of the install before is there: %v", err)
	}
}

// TestASystemThatIsDoneIsLeftAlone, whatever became of its disk and came to it: each boot asks
// nobody, and ends well. Where it finds a later install, it says why that is not used.
func TestASystemThatIsDoneIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		then func(t *testing.T, s *system)
		// reserved: the disk has a partition for the first-boot area.
		reserved bool
		// warns is of the one warning; empty: there is none.
		warns string
	}{
		"as it was installed": {then: func(*testing.T, *system) {}},
		"its area is gone": {then: func(t *testing.T, s *system) {
			t.Helper()
			s.disk(t, "sdb", nil)
		}},
		"its disk cannot be read": {then: func(t *testing.T, s *system) {
			t.Helper()
			if err := os.Remove(filepath.Join(s.root, "dev/sdb")); err != nil {
				t.Fatal(err)
			}
		}},
		"its root is on no disk": {then: func(t *testing.T, s *system) {
			t.Helper()
			s.write(t, "proc/self/mountinfo", "")
		}},
		"it has moved to a disk of an earlier install": {then: func(t *testing.T, s *system) {
			t.Helper()
			s.installAgain(t, "m-another", -60)
		}, warns: "is not later"},
		"nor is it of one as old": {then: func(t *testing.T, s *system) {
			t.Helper()
			s.installAgain(t, "m-another", 0)
		}, warns: "is not later"},
		"a spare disk of a later install was added": {then: func(t *testing.T, s *system) {
			t.Helper()
			s.installAgain(t, "m-another", 60)
			s.disk(t, "sda", nil)
			s.onVolume(t, "sdb/sdb2")
			s.onVolume(t, "sda")
		}, warns: "on other disks"},
		"what a later install has left lies on its disk": {then: func(t *testing.T, s *system) {
			t.Helper()
			s.installAgain(t, "m-another", 60)
			s.partitioned(t, "sdb", 6144)
		}, warns: "sdb: the disk does not hold that install any more"},
		"it was first booted by a version that did not write down of which install": {then: func(t *testing.T, s *system) {
			t.Helper()
			s.installAgain(t, "m-another", 60)
			s.write(t, begunFile, "")
		}},
		"or that left nothing of having begun": {then: func(t *testing.T, s *system) {
			t.Helper()
			s.installAgain(t, "m-another", 60)
			if err := os.Remove(filepath.Join(s.root, begunFile)); err != nil {
				t.Fatal(err)
			}
		}},
		"its root has moved to the disk of a later install that another system has begun with": {reserved: true, then: func(t *testing.T, s *system) {
			t.Helper()
			s.installAgain(t, "m-another", 60)
			s.take(t, "sdb")
		}, warns: "sdb: another system has begun with it"},
		"it was first booted by a version that wrote down no time": {then: func(t *testing.T, s *system) {
			t.Helper()
			s.installAgain(t, "m-another", 60)
			s.write(t, begunFile, "m 3 2\n")
		}, warns: "is not later"},
		"or of one that recorded no partitions": {then: func(t *testing.T, s *system) {
			t.Helper()
			s.moved(t, func(first *agentv1.FirstBoot) { first.Content = nil })
		}, warns: "recorded no partitions"},
		"its root has grown over another device of a Btrfs": {then: func(t *testing.T, s *system) {
			t.Helper()
			s.installAgain(t, "m-another", 60)
			s.disk(t, "sda", nil)
			s.link(t, "../../../../devices/sda", "sys/fs/btrfs/uuid/devices/sda")
			s.link(t, "../../../../devices/sdb/sdb2", "sys/fs/btrfs/uuid/devices/sdb2")
		}, warns: "on other disks"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, s := installedOn(t, false, c.reserved)
			c.then(t, s)
			var log strings.Builder
			s.log = &log
			if err := s.run(t); err != nil || p.calls() != 0 {
				t.Errorf("%v, calls %v", err, p.reports)
			}
			if got := s.read(t, hostKeyFile) + " " + s.read(t, "runs"); got != "first first\n" || !isThere(filepath.Join(s.root, doneFile)) {
				t.Errorf("host key and runs are %q", got)
			}
			if n := strings.Count(log.String(), "level="); !strings.Contains(log.String(), c.warns) || (n == 1) != (c.warns != "") || n > 1 {
				t.Errorf("it warns of %q", log.String())
			}
		})
	}
}

// TestTheNumbersOfAnotherInstall: a control plane with another database counts from the beginning.
// The install has the numbers of the one that the system has begun with, and is of another time.
func TestTheNumbersOfAnotherInstall(t *testing.T) {
	t.Parallel()
	p, s := installed(t, true)
	s.moved(t, func(first *agentv1.FirstBoot) {
		first.Token.MachineId, first.Token.MadeAt.Seconds = "m", s.token.GetMadeAt().GetSeconds()-60
	})
	if err := s.run(t); err == nil || p.calls() != 0 {
		t.Errorf("it calls as %v, %v", p.reports, err)
	}
	// One older version wrote no time down, another one the image as well.
	for n, mark := range []string{"m 3 2\n", fmt.Sprintf("m 3 2\n%020d\nsha256:01\n", s.token.GetMadeAt().GetSeconds()-60)} {
		s.write(t, begunFile, mark)
		s.write(t, watchedFile, "")
		if err := s.run(t); err != nil || p.calls() != n+1 {
			t.Errorf("%q: %d calls, %v", mark, p.calls(), err)
		}
	}
}

// TestTwoPathsToTheDiskOfAnImage are one disk, as the root file system is on all of it.
func TestTwoPathsToTheDiskOfAnImage(t *testing.T) {
	t.Parallel()
	p, s := installed(t, false)
	s.installAgain(t, "m-another", 60)
	s.write(t, "dev/sda", s.read(t, "dev/sdb"))
	s.onVolume(t, "sdb/sdb2")
	s.onVolume(t, "sda")
	if err := s.run(t); err != nil || p.calls() != 1 || s.read(t, "runs") != "first\nsecond\n" {
		t.Errorf("%d calls, %v, runs %q", p.calls(), err, s.read(t, "runs"))
	}
}

// TestWhatCannotBeForgottenIsTriedAgain: the system does not call before, and knows until then that
// there was another install.
func TestWhatCannotBeForgottenIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, file := range []string{doneFile, ranFile} {
		p, s := installed(t, false)
		s.installAgain(t, "m-another", 60)
		path := filepath.Join(s.root, file)
		if err := errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "in the way"), 0o755)); err != nil {
			t.Fatal(err)
		}
		if err := s.run(t); err == nil || p.calls() != 0 || s.read(t, "runs") != "first\n" {
			t.Errorf("%s: %d calls, %v, runs %q", file, p.calls(), err, s.read(t, "runs"))
		}
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		s.write(t, file, "")
		if err := s.run(t); err != nil || p.calls() != 1 || s.read(t, "runs") != "first\nsecond\n" {
			t.Errorf("%s: %d calls, %v, runs %q", file, p.calls(), err, s.read(t, "runs"))
		}
	}
}
