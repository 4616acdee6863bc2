package firmware_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/sim/firmware"
)

func area(tb testing.TB, first *agentv1.FirstBoot) []byte {
	tb.Helper()
	payload, err := proto.Marshal(first)
	if err != nil {
		tb.Fatal(err)
	}
	sum := sha256.Sum256(payload)
	b := binary.BigEndian.AppendUint32([]byte("IRONHERD-BOOT-1\n"), uint32(len(payload)))
	return append(append(b, sum[:]...), payload...)
}

func good() *agentv1.FirstBoot {
	return &agentv1.FirstBoot{
		Token: &agentv1.BootToken{MachineId: "m", Secret: []byte("s")},
		Image: &agentv1.Image{Digest: "sha256:x", Size: 1},
		Data:  []byte("data"),
	}
}

func disk(t *testing.T, size int64, offset int64, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.WriteAt(content, offset)
	if err := errors.Join(err, file.Truncate(size), file.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFind(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, c := range []struct{ size, offset int64 }{
		{3 * mib, 1 * mib},
		{100 * mib, 98 * mib},
		{100*mib + 512, 98 * mib},
		{101*mib - 1, 98 * mib},
		{480_103_981_056, (480_103_981_056/mib - 2) * mib},
	} {
		got, err := firmware.Find(disk(t, c.size, c.offset, area(t, good())))
		if err != nil || !proto.Equal(got, good()) {
			t.Errorf("disk of %d bytes: %v, %v", c.size, got, err)
		}
		if _, err := firmware.Find(disk(t, c.size, c.offset+1, area(t, good()))); !errors.Is(err, firmware.ErrNoSystem) && c.size > 3*mib {
			t.Errorf("disk of %d bytes with an area in the wrong place: %v", c.size, err)
		}
		if _, err := firmware.Find(disk(t, c.size, 0, nil)); !errors.Is(err, firmware.ErrNoSystem) {
			t.Errorf("empty disk of %d bytes: %v", c.size, err)
		}
	}
}

func TestParseRefusesWhatIsDamaged(t *testing.T) {
	t.Parallel()
	whole := area(t, good())
	if _, err := firmware.Parse(whole); err != nil {
		t.Fatal(err)
	}
	for at := range whole {
		damaged := bytes.Clone(whole)
		damaged[at] ^= 0x40
		if got, err := firmware.Parse(damaged); err == nil {
			t.Errorf("damage at %d was accepted: %v", at, got)
		}
		if got, err := firmware.Parse(whole[:at]); err == nil {
			t.Errorf("cut at %d was accepted: %v", at, got)
		}
	}
	for name, change := range map[string]func(*agentv1.FirstBoot){
		"no token":  func(f *agentv1.FirstBoot) { f.Token = nil },
		"no secret": func(f *agentv1.FirstBoot) { f.Token.Secret = nil },
		"no image":  func(f *agentv1.FirstBoot) { f.Image = nil },
		"no size":   func(f *agentv1.FirstBoot) { f.Image.Size = 0 },
	} {
		first := good()
		change(first)
		if _, err := firmware.Parse(area(t, first)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestReadBack(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("content "), 100_000)
	path := disk(t, 10<<20, 0, content)
	want := append(bytes.Clone(content), make([]byte, 4<<20-len(content))...)
	got, err := firmware.ReadBack(t.Context(), path, 4<<20, nil)
	if err != nil || got != fmt.Sprintf("sha256:%x", sha256.Sum256(want)) {
		t.Errorf("read back %s, %v", got, err)
	}
	copy(want, "a partition table that was moved")
	got, err = firmware.ReadBack(t.Context(), path, 4<<20, want[:1<<20])
	if err != nil || got != fmt.Sprintf("sha256:%x", sha256.Sum256(want)) {
		t.Errorf("with a head of its own: read back %s, %v", got, err)
	}
	if _, err := firmware.ReadBack(t.Context(), path, 11<<20, nil); err == nil {
		t.Error("more was read back than the disk has")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(area(f, good()))
	f.Add([]byte("IRONHERD-BOOT-1\n\x00\x02\x00\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := firmware.Parse(data)
		if (err == nil) != (first != nil) {
			t.Fatalf("%v with error %v", first, err)
		}
	})
}
