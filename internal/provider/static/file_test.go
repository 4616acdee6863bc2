package static

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
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
// stays like that. Whoever asks meanwhile waits. The file server may have any clock.
func TestAListThatIsBeingWritten(t *testing.T) {
	t.Parallel()
	const last = "  - id: node20\n    address: 10.0.0.189\n    port: 2201\n"
	const key = "    host_key: " + hostKey + "\n    jump: {address: 192.0.2.1, host_key: " + hostKey + "}\n"
	whole := hosts(20) + last + key
	for name, half := range map[string]string{
		"empty":                  "",
		"cut in a host":          whole[:len(whole)/2],
		"cut at a line":          whole[:strings.Index(whole, "  - {id: node9,")],
		"without a host":         strings.Replace(whole, "id: node19,", "id: other,", 1),
		"only its header":        "hosts: []\n",
		"cut in the last's port": strings.TrimSuffix(hosts(20)+last, "01\n"),
		"cut after its port":     hosts(20) + last,
		"cut before its jump":    whole[:strings.Index(whole, "    jump:")],
	} {
		for when, known := range map[string]bool{"known": true, "new": false} {
			for clock, behind := range map[string]time.Duration{"here": 0, "behind": time.Hour, "ahead": -time.Hour} {
				t.Run(name+", of a list that is "+when+", the server's clock "+clock, func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) { beingWritten(t, whole, half, known, behind) })
				})
			}
		}
	}
}

// beingWritten writes half of a list, and a second later the whole; then half, which stays.
func beingWritten(t *testing.T, whole, half string, known bool, behind time.Duration) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hosts.yaml")
	p := newProvider(t, Config{Path: path})
	if known {
		since(t, path, whole, 2*time.Hour)
		if entries, err := p.List(t.Context()); err != nil || len(entries) != 21 {
			t.Fatalf("%d hosts, %v", len(entries), err)
		}
	}
	since(t, path, half, behind)
	begin := time.Now()
	time.AfterFunc(time.Second, func() { since(t, path, whole, behind) })
	got, err := p.Get(t.Context(), "node20")
	if err != nil || got.Access.Port != 2201 || len(got.HostKeys) != 1 || got.Access.Jump == nil {
		t.Errorf("while it is written: %+v, %v", got, err)
	}
	if took := time.Since(begin); !known && took < settled {
		t.Errorf("it counts after %s", took)
	}
	begin = time.Now()
	since(t, path, half, behind)
	if got, err := p.Get(t.Context(), "node20"); err == nil && got.Access.Jump != nil && !strings.Contains(half, "id: other,") {
		t.Errorf("it stays like that: %+v", got)
	} else if took := time.Since(begin); took != settled {
		t.Errorf("it counts after %s", took)
	}
}

// TestAListThatIsAlwaysBeingWritten: what is new in it never counts, and whoever asks is told why.
func TestAListThatIsAlwaysBeingWritten(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "hosts.yaml")
			since(t, path, hosts(2), time.Hour)
			p := newProvider(t, Config{Path: path})
			if known {
				if _, err := p.Get(t.Context(), "node1"); err != nil {
					t.Fatal(err)
				}
			}
			var written atomic.Value
			written.Store(hosts(1))
			ctx, cancel := context.WithCancel(t.Context())
			var writer sync.WaitGroup
			defer writer.Wait()
			defer cancel()
			writer.Go(func() {
				for ctx.Err() == nil {
					since(t, path, written.Load().(string), 0)
					time.Sleep(300 * time.Millisecond)
				}
			})
			time.Sleep(time.Millisecond) // never at the instant of a write
			begin := time.Now()
			_, err := p.Get(t.Context(), "node1")
			if fleet.KindOf(err) != fleet.KindTemporary || !strings.Contains(err.Error(), "it counts when nobody has written it for 2s") {
				t.Errorf("known: %t: %v (%s)", known, err, fleet.KindOf(err))
			}
			if took := time.Since(begin); took != unsettled {
				t.Errorf("it took %s", took)
			}
			written.Store(hosts(2)) // nothing is new
			time.Sleep(time.Second)
			if _, err := p.Get(t.Context(), "node1"); known != (err == nil) {
				t.Errorf("known: %t, and the list says what it said: %v", known, err)
			}
		})
	}
}

// TestAFileThatHangs, as on a network file system, keeps nobody beyond their context, nor anybody
// for longer than a minute. It is asked for once, however many ask.
func TestAFileThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "hosts.yaml")
		since(t, path, hosts(2), time.Hour)
		p := newProvider(t, Config{Path: path})
		hang, loads := make(chan struct{}), 0
		p.file.load = func(path string) ([]byte, os.FileInfo, error) {
			loads++
			<-hang
			return readFile(path)
		}
		cause := errors.New("the control plane stops")
		var callers sync.WaitGroup
		for range 3 {
			callers.Go(func() {
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
				defer cancel()
				begin := time.Now()
				_, err := p.Get(ctx, "node1")
				if fleet.KindOf(err) != fleet.KindTimeout || !errors.Is(err, cause) || time.Since(begin) != time.Second {
					t.Errorf("%v (%s) after %s", err, fleet.KindOf(err), time.Since(begin))
				}
			})
			callers.Wait()
		}
		begin := time.Now()
		if _, err := p.List(t.Context()); fleet.KindOf(err) != fleet.KindTimeout || !strings.Contains(err.Error(), path+": ") ||
			!strings.Contains(err.Error(), "did not answer within 1m0s") || time.Since(begin) != readLimit {
			t.Errorf("a pass, which has no limit: %v (%s) after %s", err, fleet.KindOf(err), time.Since(begin))
		}
		time.AfterFunc(readLimit/2, func() { close(hang) })
		if _, err := p.Get(t.Context(), "node1"); err != nil || loads != 2 { // and it stays as it is
			t.Errorf("when it answers: %v, after %d readings", err, loads)
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
	data := &p.file.says.data[0]
	if n := testing.AllocsPerRun(100, func() { _, _ = p.Get(t.Context(), "node7") }); n > 20 {
		t.Errorf("a question took %.0f allocations", n)
	}
	if data != &p.file.says.data[0] {
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

// TestAListHasRoomForTheMostHosts, and none beyond its bound.
func TestAListHasRoomForTheMostHosts(t *testing.T) {
	t.Parallel()
	const host = `- id: rack-1000-host-100000
  hostname: rack-1000-host-100000.fleet.example.net
  address: 2001:0db8:1000:1000:1000:1000:1000:1000
  location: hall 2, rack 1000
  labels: {role: database, team: payments}
  host_key: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHDZ6GhhqEXsp3oNMdNMmqmNZ3k7G5Wf8G3vOqWgY0y8
`
	if most := listSize / len(host); most < maximumHosts {
		t.Errorf("a list has room for %d of %d hosts", most, maximumHosts)
	}
	path := filepath.Join(t.TempDir(), "hosts.yaml")
	for size, want := range map[int64]fleet.Kind{listSize: fleet.KindUnknown, listSize + 1: fleet.KindInvalid} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		data, err := readOnce(path)
		if fleet.KindOf(err) != want || (err == nil) != (int64(len(data)) == size) {
			t.Errorf("%d bytes: %d, %v", size, len(data), err)
		}
	}
}
