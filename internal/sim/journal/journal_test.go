package journal_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironherd/ironherd/internal/sim/journal"
)

func TestEverythingThatWasAppendedIsThereAfterAKill(t *testing.T) {
	t.Parallel()
	dir, n := t.TempDir(), 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		path := filepath.Join(dir, fmt.Sprint(n))
		model := map[string][]byte{}
		for range rapid.IntRange(1, 4).Draw(t, "lives") {
			j, values, err := journal.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			if !maps.EqualFunc(values, model, bytes.Equal) {
				t.Fatalf("opened with %q, want %q", values, model)
			}
			for range rapid.IntRange(0, 20).Draw(t, "batches") {
				var batch []journal.Change
				for range rapid.IntRange(1, 4).Draw(t, "changes") {
					c := journal.Change{Key: rapid.SampledFrom([]string{"a", "b", "c", ""}).Draw(t, "key")}
					if rapid.Bool().Draw(t, "put") {
						c.Value = append([]byte{}, rapid.SliceOf(rapid.Byte()).Draw(t, "value")...)
					}
					batch = append(batch, c)
				}
				if err := j.Append(batch...); err != nil {
					t.Fatal(err)
				}
				for _, c := range batch {
					if c.Value == nil {
						delete(model, c.Key)
					} else {
						model[c.Key] = c.Value
					}
				}
			}
			// Not closed: killed. The descriptor is leaked until the garbage collector takes it, as the
			// kernel would.
		}
	})
}

// TestTornTail cuts a journal at every length: what is found is what the whole frames before the
// cut say.
func TestTornTail(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j, _, err := journal.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	ends := []int64{size(t, path)}
	for i := range 5 {
		if err := j.Append(journal.Change{Key: "n", Value: []byte(fmt.Sprint(i))}, journal.Change{Key: fmt.Sprint(i), Value: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, size(t, path))
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(whole) + 1 {
		values, err := journal.Read(whole[:cut])
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		frames := 0
		for _, end := range ends[1:] {
			if int64(cut) >= end {
				frames++
			}
		}
		want := ""
		if frames > 0 {
			want = fmt.Sprint(frames - 1)
		}
		if got := string(values["n"]); got != want {
			t.Fatalf("cut at %d of %v: n = %q, want %q", cut, ends, got, want)
		}
	}
}

func TestDamageIsNeverSkipped(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j, _, err := journal.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := j.Append(journal.Change{Key: fmt.Sprint(i), Value: bytes.Repeat([]byte("v"), 50)}); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{0, 12, 20, 40} {
		damaged := bytes.Clone(data)
		damaged[at] ^= 0xff
		if _, err := journal.Read(damaged); !errors.Is(err, journal.ErrDamaged) {
			t.Errorf("damage at %d: %v, want ErrDamaged", at, err)
		}
	}
}

func TestAppendAfterClose(t *testing.T) {
	t.Parallel()
	j, _, err := journal.Open(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j.Close(), j.Close()); err != nil {
		t.Fatal(err)
	}
	if err := j.Append(journal.Change{Key: "k"}); !errors.Is(err, os.ErrClosed) {
		t.Fatalf("append after close: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	path := filepath.Join(f.TempDir(), "journal")
	j, _, err := journal.Open(path)
	if err != nil {
		f.Fatal(err)
	}
	if err := j.Append(journal.Change{Key: "k", Value: []byte("v")}, journal.Change{Key: "gone"}); err != nil {
		f.Fatal(err)
	}
	seed, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add(seed[:len(seed)-1])
	f.Add([]byte("IHSIMJ01\x00\x00\x00\x01\x00\x00\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		values, err := journal.Read(data)
		if (err == nil) != (values != nil) {
			t.Fatalf("values %v with error %v", values, err)
		}
	})
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
