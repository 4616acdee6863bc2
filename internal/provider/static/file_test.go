package static

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// hosts are the lines of so many hosts.
func hosts(n int) string {
	var text strings.Builder
	text.WriteString("hosts:\n")
	for i := range n {
		fmt.Fprintf(&text, "  - {id: node%d, address: 10.0.%d.%d, host_key: %s, location: rack %d}\n", i, i>>8, i&255, hostKey, i/40)
	}
	return text.String()
}

// since writes a list whose last write is so long ago.
func since(t *testing.T, path, content string, ago time.Duration) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-ago)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

// TestAListThatIsBeingWritten: what an editor has written of it so far does not count, until it
// stays like that.
func TestAListThatIsBeingWritten(t *testing.T) {
	t.Parallel()
	whole := hosts(20)
	for name, half := range map[string]string{
		"empty":           "",
		"cut in a host":   whole[:len(whole)/2],
		"cut at a line":   whole[:strings.Index(whole, "  - {id: node9,")],
		"without a host":  strings.Replace(whole, "id: node19,", "id: other,", 1),
		"only its header": "hosts: []\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "hosts.yaml")
				since(t, path, whole, time.Hour)
				p := newProvider(t, Config{Path: path})
				if entries, err := p.List(t.Context()); err != nil || len(entries) != 20 {
					t.Fatalf("%d hosts, %v", len(entries), err)
				}
				since(t, path, half, 0)
				for range 2 {
					if entries, err := p.List(t.Context()); err != nil || len(entries) != 20 {
						t.Errorf("while it is written: %d hosts, %v", len(entries), err)
					}
					if got, err := p.Get(t.Context(), "node19"); err != nil || got.ID != "node19" {
						t.Errorf("while it is written: %+v, %v", got, err)
					}
					time.Sleep(settled - time.Millisecond)
				}
				time.Sleep(time.Millisecond)
				if _, err := p.Get(t.Context(), "node19"); fleet.KindOf(err) != fleet.KindNotFound && fleet.KindOf(err) != fleet.KindInvalid {
					t.Errorf("it stays like that: %v (%s)", err, fleet.KindOf(err))
				}
				since(t, path, whole+"  - {id: other, address: 192.0.2.2}\n  - {id: new, address: 192.0.2.1}\n", 0)
				if got, err := p.Get(t.Context(), "new"); err != nil || got.ID != "new" {
					t.Errorf("what is added counts at once: %+v, %v", got, err)
				}
			})
		})
	}
}

// TestAListThatIsAlwaysBeingWritten: one list stands in for another for a while, and not for ever.
func TestAListThatIsAlwaysBeingWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "hosts.yaml")
		since(t, path, hosts(2), time.Hour)
		p := newProvider(t, Config{Path: path})
		if _, err := p.Get(t.Context(), "node1"); err != nil {
			t.Fatal(err)
		}
		for begin := time.Now(); time.Since(begin) < 2*unsettled; time.Sleep(time.Second) {
			since(t, path, "", 0)
			_, err := p.Get(t.Context(), "node1")
			if over := time.Since(begin) >= unsettled; over != (err != nil) || over && fleet.KindOf(err) != fleet.KindInvalid {
				t.Errorf("after %s: %v", time.Since(begin), err)
			}
		}
	})
}

// TestAFirstReadingNeedsAWholeList: nothing stands in for a list that was never read.
func TestAFirstReadingNeedsAWholeList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "hosts.yaml")
		since(t, path, "", 0)
		if entries, err := newProvider(t, Config{Path: path}).List(t.Context()); fleet.KindOf(err) != fleet.KindInvalid || entries != nil {
			t.Errorf("%v, %v", entries, err)
		}
	})
}

// TestAFileThatIsWrittenWhileItIsRead: such a reading is none, whatever it holds.
func TestAFileThatIsWrittenWhileItIsRead(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "hosts.yaml")
	since(t, path, hosts(2), time.Hour)
	writes := 0
	read := func(path string) ([]byte, error) {
		data, err := readOnce(path)
		if writes > 0 {
			since(t, path, hosts(2), time.Duration(writes)*time.Minute) // the same size
			writes--
		}
		return data, err
	}
	for writes = range readings {
		if data, info, err := readWhole(path, read); err != nil || string(data) != hosts(2) || info == nil {
			t.Errorf("%d bytes, %v", len(data), err)
		}
	}
	writes = readings
	data, info, err := readWhole(path, read)
	if fleet.KindOf(err) != fleet.KindTemporary || !strings.Contains(err.Error(), "while it was read") || data != nil || info == nil {
		t.Errorf("%d bytes, %v (%s)", len(data), err, fleet.KindOf(err))
	}
	cut := func(path string) ([]byte, error) { // between a truncation and a write of one instant
		data, err := readOnce(path)
		return data[:len(data)/2], err
	}
	if data, _, err := readWhole(path, cut); fleet.KindOf(err) != fleet.KindTemporary {
		t.Errorf("half of it: %d bytes, %v", len(data), err)
	}
}

// TestAQuestionAboutOneHostReadsNoList: where nothing has changed. Parsing a list of a thousand
// hosts takes tens of thousands of allocations.
func TestAQuestionAboutOneHostReadsNoList(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts.yaml")
	since(t, path, hosts(1000), time.Hour)
	p := newProvider(t, Config{Path: path})
	if _, err := p.Get(t.Context(), "node7"); err != nil {
		t.Fatal(err)
	}
	data := &p.file.data[0]
	if n := testing.AllocsPerRun(100, func() { _, _ = p.Get(t.Context(), "node7") }); n > 20 {
		t.Errorf("a question took %.0f allocations", n)
	}
	if data != &p.file.data[0] {
		t.Error("the list was read again")
	}
	// A file of another inode, with the size and the time of this one.
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other.yaml")
	since(t, other, strings.Replace(hosts(1000), "id: node7,", "id: edit7,", 1), time.Hour)
	if err := os.Chtimes(other, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, path); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Get(t.Context(), "edit7"); err != nil {
		t.Errorf("a file that took its place is not read: %v", err)
	}
}

func BenchmarkGet(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "hosts.yaml")
			if err := os.WriteFile(path, []byte(hosts(n)), 0o600); err != nil {
				b.Fatal(err)
			}
			at := time.Now().Add(-time.Hour)
			if err := os.Chtimes(path, at, at); err != nil {
				b.Fatal(err)
			}
			p, err := New(Config{Path: path, InFlight: 1}, provider.Options{})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := p.Get(b.Context(), "node7"); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.Get(b.Context(), "node7"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
