package firstboot

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// partitioned writes an MBR with one partition to a disk of the system, and returns what an install
// records of it.
func (s *system) partitioned(t *testing.T, name string, first uint32) *agentv1.DiskContent {
	t.Helper()
	sector := make([]byte, 512)
	copy(sector[440:], "sign")
	sector[446+4] = 0x83
	binary.LittleEndian.PutUint32(sector[446+8:], first)
	binary.LittleEndian.PutUint32(sector[446+12:], 4096)
	copy(sector[510:], "\x55\xaa")
	file, err := os.OpenFile(filepath.Join(s.root, "dev", name), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if _, err := file.WriteAt(sector, 0); err != nil {
		t.Fatal(err)
	}
	id := append([]byte("sign\x83"), sector[446+8:446+12]...)
	return &agentv1.DiskContent{Kinds: []string{"a partition table (MBR)"}, Partitions: [][]byte{id}}
}

// TestAnAreaOfWhatIsNotThereAnyMoreIsNotBelieved: its disk was given to another system, by hand or
// by the provider, and the area has the program, the host key and the secret of the install before.
func TestAnAreaOfWhatIsNotThereAnyMoreIsNotBelieved(t *testing.T) {
	t.Parallel()
	const start, elsewhere = 2048, 4096
	for name, there := range map[string]struct {
		recorded, now uint32
		believed      bool
	}{
		"the install":                {start, start, true},
		"something else":             {start, elsewhere, false},
		"an install without a table": {0, elsewhere, true}, // nothing tells it from another
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t, 0)
			s := newSystem(t, p, "")
			first := &agentv1.FirstBoot{
				Token: s.token, Data: []byte("#!/bin/sh\necho ran >>runs\n"), SshHostKey: &agentv1.SshHostKey{Public: "ssh-ed25519 OLD", Private: []byte("old")},
				Content: new(agentv1.DiskContent),
			}
			if there.recorded != 0 {
				first.Content = s.partitioned(t, "sdb", there.recorded)
			}
			s.disk(t, "sdb", first)
			s.partitioned(t, "sdb", there.now)
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

// TestASystemMayChangeItsDisk once it has begun with its first boot: the area stays its own.
func TestASystemMayChangeItsDisk(t *testing.T) {
	t.Parallel()
	for name, file := range map[string]string{"after its program has restarted it": ranFile, "while it is watched": doneFile} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t, 0)
			s := newSystem(t, p, "")
			s.disk(t, "sdb", &agentv1.FirstBoot{Token: s.token, Content: s.partitioned(t, "sdb", 2048)})
			s.partitioned(t, "sdb", 4096)
			s.write(t, file, "")
			s.write(t, watchedFile, "")
			if err := s.run(t); err != nil || p.calls() != 1 {
				t.Errorf("%d calls, %v", p.calls(), err)
			}
		})
	}
}
