package firstboot

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/install"
)

// partitioned writes an MBR to a disk of the system, with partitions that begin at these sectors,
// and returns what an install records of it. Where the system has reserved areas, it is a GPT with
// such a partition besides.
func (s *system) partitioned(t *testing.T, name string, starts ...uint32) *agentv1.DiskContent {
	t.Helper()
	if s.reserved {
		return s.partitionedGPT(t, name, starts)
	}
	content := &agentv1.DiskContent{Kinds: []string{"a partition table (MBR)"}}
	sector := make([]byte, 512)
	copy(sector[440:], "sign")
	for i, start := range starts {
		entry := sector[446+16*i:][:16]
		entry[4] = 0x83
		binary.LittleEndian.PutUint32(entry[8:], start)
		binary.LittleEndian.PutUint32(entry[12:], 2048)
		content.Partitions = append(content.Partitions, append([]byte("sign\x83"), entry[8:12]...))
	}
	copy(sector[510:], "\x55\xaa")
	file, err := os.OpenFile(filepath.Join(s.root, "dev", name), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if _, err := file.WriteAt(sector, 0); err != nil {
		t.Fatal(err)
	}
	return content
}

func (s *system) partitionedGPT(t *testing.T, name string, starts []uint32) *agentv1.DiskContent {
	t.Helper()
	path := filepath.Join(s.root, "dev", name)
	table := "label: gpt\n"
	for _, start := range starts {
		table += fmt.Sprintf("start=%d, size=2048, uuid=%08d-0000-0000-0000-000000000000\n", start, start)
	}
	table += fmt.Sprintf("start=%d, size=2048, type=8DA63339-0007-60C0-C436-083AC8230908, uuid=00000001-0000-0000-0000-000000000000\n",
		install.FirstBootOffset(diskSize)/512)
	sfdisk, err := exec.LookPath("sfdisk")
	if err != nil {
		sfdisk = "/usr/sbin/sfdisk"
	}
	cmd := exec.CommandContext(t.Context(), sfdisk, "--quiet", "--wipe=never", path)
	cmd.Stdin = strings.NewReader(table)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	disk := s.read(t, "dev/"+name)
	content := &agentv1.DiskContent{Kinds: []string{"a GUID partition table"}}
	for i := range starts {
		content.Partitions = append(content.Partitions, []byte(disk[1024+128*i:][:32])) // type and GUID
	}
	return content
}

// TestAnAreaOfWhatIsNotThereAnyMoreIsNotBelieved: its disk was given to another system, by hand or
// by the provider, and the area has the program, the host key and the secret of the install before.
// An initrd that makes the last partition anew, to let it grow, leaves the others.
func TestAnAreaOfWhatIsNotThereAnyMoreIsNotBelieved(t *testing.T) {
	t.Parallel()
	for name, there := range map[string]struct {
		recorded, now []uint32
		believed      bool
	}{
		"the install":                {[]uint32{2048, 4096}, []uint32{2048, 4096}, true},
		"a partition made anew":      {[]uint32{2048, 4096}, []uint32{2048, 6144}, true},
		"something else":             {[]uint32{2048, 4096}, []uint32{6144, 8192}, false},
		"nothing that is known":      {[]uint32{2048, 4096}, nil, false},
		"an install without a table": {nil, []uint32{4096}, true}, // nothing tells it from another
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t, 0)
			s := newSystem(t, p, "")
			first := &agentv1.FirstBoot{
				Token: s.token, Data: []byte("#!/bin/sh\necho ran >>runs\n"), SshHostKey: &agentv1.SshHostKey{Public: "ssh-ed25519 OLD", Private: []byte("old")},
				Content: s.partitioned(t, "sdb", there.recorded...),
			}
			s.disk(t, "sdb", first)
			s.partitioned(t, "sdb", there.now...)
			if err := s.run(t); err != nil {
				t.Fatal(err)
			}
			_, err := os.Stat(filepath.Join(s.root, "runs"))
			key := s.read(t, hostKeyFile)
			if ran, took := err == nil, key == "old"; ran != there.believed || took != there.believed || (p.calls() == 1) != there.believed {
				t.Errorf("the program ran: %v, the host key is %q, %d calls", ran, key, p.calls())
			}
		})
	}
}

// TestADiskMayBeMadeLarger: a watched system calls on when its disk has, and so does one that was
// not heard yet. Its partition table says where the area is.
func TestADiskMayBeMadeLarger(t *testing.T) {
	t.Parallel()
	for name, watched := range map[string]bool{"not heard yet": false, "watched": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t, 0)
			s := newSystem(t, p, "")
			path := filepath.Join(s.root, "dev/sdb")
			s.reserved = true
			s.partitioned(t, "sdb", 2048)
			if watched {
				ctx, powerOff := context.WithCancel(t.Context())
				p.wanted, p.heard = math.MaxInt, func(n int) {
					if n == 2 {
						powerOff()
					}
				}
				if err := s.runUntil(ctx); err != nil {
					t.Fatal(err)
				}
				p.mu.Lock() // the call at which the power was cut may not have ended
				p.reports, p.wanted, p.heard = nil, 0, nil
				p.mu.Unlock()
			}
			const larger = diskSize + 3<<20 + 512
			if err := os.Truncate(path, larger); err != nil {
				t.Fatal(err)
			}
			if err := s.run(t); err != nil || p.calls() != 1 || p.reports[0].GetMachineId() != "m" {
				t.Errorf("%d calls, %v", p.calls(), err)
			}
			area, err := read(path)
			if err != nil || !area.Taken || strings.Trim(s.read(t, "dev/sdb")[diskSize:], "\x00") != "" {
				t.Errorf("the area is not taken, or what is behind it is written: %v", err)
			}
		})
	}
}

// TestASystemMayChangeItsDisk once it has begun with its first boot, whatever that brought: the
// area stays its own.
func TestASystemMayChangeItsDisk(t *testing.T) {
	t.Parallel()
	for name, data := range map[string]string{"a program": "#!/bin/sh\n", "data": "data", "nothing": ""} {
		for _, when := range []string{"not heard yet", "watched"} {
			t.Run(name+", "+when, func(t *testing.T) {
				t.Parallel()
				p := newPlane(t, 0)
				s := newSystem(t, p, "")
				s.disk(t, "sdb", &agentv1.FirstBoot{Token: s.token, Data: []byte(data), Content: s.partitioned(t, "sdb", 2048)})
				s.partitioned(t, "sdb", 2048)
				ctx, powerOff := context.WithCancel(t.Context())
				p.heard = func(int) { powerOff() }
				if when == "watched" {
					p.wanted, p.heard = 2, func(n int) {
						if n == 2 {
							powerOff()
						}
					}
				} else {
					p.refuse = 1
				}
				if err := s.runUntil(ctx); (err == nil) != (when == "watched") {
					t.Fatal(err)
				}
				s.partitioned(t, "sdb", 4096)
				p.mu.Lock() // the call at which the power was cut may not have ended
				p.reports, p.wanted, p.refuse, p.heard = nil, 0, 0, nil
				p.mu.Unlock()
				if err := s.run(t); err != nil || p.calls() != 1 {
					t.Errorf("%d calls, %v", p.calls(), err)
				}
			})
		}
	}
}
