package manifest

import (
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
)

// text is a manifest of ConfigMaps.
func text(names ...string) string {
	var all strings.Builder
	for _, name := range names {
		fmt.Fprintf(&all, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: default}\ndata: {of: %s}\n---\n", name, name)
	}
	return all.String()
}

// utf16 is a text of ASCII as some editors save it: two bytes for each character, and a mark before
// them.
func utf16(text string) string {
	all := []byte{0xfe, 0xff}
	for _, c := range []byte(text) {
		all = append(all, 0, c)
	}
	return string(all)
}

// said is what a reading says, in words.
func said(r Reading) string {
	var words []string
	for _, o := range r.Objects {
		words = append(words, o.Name)
	}
	for _, f := range r.Faults {
		words = append(words, "("+filepath.Base(f.Source)+": "+f.Err.Error()+")")
	}
	if r.Unsettled {
		words = append(words, "…")
	}
	if r.Unknown {
		words = append(words, "?")
	}
	return strings.Join(words, " ")
}

// TestUnfinished: a text counts when nobody has changed it for a while, and one that was cut off
// does not count at all. Until then the file has the objects that it had.
func TestUnfinished(t *testing.T) {
	t.Parallel()
	const settled = 2 * time.Second
	whole := text("a", "b", "c")
	for name, test := range map[string]struct {
		file string
		// steps are what is written, each a second after the one before.
		steps []string
		// want is what readings say: one right after each step, and one long after all.
		want []string
	}{
		"a new file":        {"x.yaml", []string{whole}, []string{"…", "a b c"}},
		"written in pieces": {"x.yaml", []string{whole, text("a"), text("a", "d"), text("a", "d", "e")}, []string{"…", "…", "…", "…", "a d e"}},
		"and read before": {
			"x.yaml", []string{whole, whole, whole, text("a"), text("a", "d")}, []string{"…", "…", "a b c", "a b c …", "a b c …", "a d"},
		},
		"as it was":            {"x.yaml", []string{whole, whole, whole, text("a"), whole}, []string{"…", "…", "a b c", "a b c …", "a b c", "a b c"}},
		"there and back again": {"x.yaml", []string{text("a"), text("b"), text("a")}, []string{"…", "…", "…", "a"}},
		"half, the whole, and half": {
			"x.yaml", []string{whole, whole, whole, text("a"), whole, text("a")}, []string{"…", "…", "a b c", "a b c …", "a b c", "a b c …", "a"},
		},
		"emptied": {"x.yaml", []string{whole, whole, whole, ""}, []string{"…", "…", "a b c", "a b c …", "a b c (x.yaml: it is empty"}},
		"emptied, then written": {
			"x.yaml",
			[]string{whole, whole, whole, "", "", "", text("d"), text("d"), text("d")},
			[]string{"…", "…", "a b c", "a b c …", "a b c …", "a b c (x.yaml: it is empty", "a b c (x.yaml: it is empty", "a b c (x.yaml: it is empty", "d", "d"},
		},
		"a comment alone": {"x.yaml", []string{whole, whole, whole, "# nothing\n"}, []string{"…", "…", "a b c", "a b c …", ""}},
		"a newline alone": {"x.yaml", []string{whole, whole, whole, "\n \n"}, []string{"…", "…", "a b c", "a b c …", "a b c (x.yaml: it is empty"}},
		"always empty": {
			"x.json",
			[]string{"", "\n", "\n", "\n", "null", "null", "null"},
			[]string{"…", "…", "…", "(x.json: it is empty, as a file is that could not be written: write null", "(x.json: it is empty", "(x.json: it is empty", "", ""},
		},
		"cut in a line":            {"x.yml", []string{whole, whole, whole, whole[:len(text("a"))+70]}, []string{"…", "…", "a b c", "a b c …", "a b c (x.yml: it ends in the"}},
		"cut before the newline":   {"x.yaml", []string{strings.TrimSuffix(text("a"), "\n---\n")}, []string{"…", "(x.yaml: it ends in the"}},
		"with the ends of Windows": {"x.yaml", []string{strings.ReplaceAll(whole, "\n", "\r\n")}, []string{"…", "a b c"}},
		"with those of old Macs":   {"x.yaml", []string{strings.ReplaceAll(whole, "\n", "\r")}, []string{"…", "a b c"}},
		"JSON shows its own end": {
			"x.json", []string{`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"j","namespace":"default"}}`}, []string{"…", "j"},
		},
		"in another encoding":                            {"x.yaml", []string{whole, whole, whole, utf16(whole)}, []string{"…", "…", "a b c", "a b c …", "a b c (x.yaml: it is no text in UTF-8"}},
		"in UTF-16 of the other order, without its mark": {"x.yaml", []string{utf16(whole)[3:] + "\x00"}, []string{"…", "(x.yaml: it is no text in UTF-8"}},
		"in Latin-1": {"x.json", []string{"[\"\xe4\"]"}, []string{"…", "(x.json: it is no text in UTF-8"}},
		"a fault":    {"x.yaml", []string{"a: b: c\n"}, []string{"…", "(x.yaml#1: "}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				d := At(dir, settled)
				check := func(when, want string) {
					t.Helper()
					got := said(d.Read(t.Context()))
					if got != want && (!strings.Contains(want, "(") || !strings.HasPrefix(got, want)) {
						t.Errorf("%s: %q, want %q", when, got, want)
					}
				}
				for n, step := range test.steps {
					if err := os.WriteFile(filepath.Join(dir, test.file), []byte(step), 0o600); err != nil {
						t.Fatal(err)
					}
					check(fmt.Sprintf("step %d", n), test.want[n])
					time.Sleep(time.Second)
				}
				time.Sleep(settled)
				check("in the end", test.want[len(test.steps)])
			})
		})
	}
}

// TestDiskHangs: a reading that hangs holds up one caller for a while, and no other. What was read
// before counts, and a fault says that it is not all.
func TestDiskHangs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d := At(dir, 0)
		var hangs chan struct{}
		var begun atomic.Int64
		d.load = func(path string) ([]byte, error) {
			if hangs != nil {
				begun.Add(1)
				<-hangs
			}
			return readFile(path)
		}
		write := func(text string) {
			if err := os.WriteFile(filepath.Join(dir, "x.yaml"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(text("a"))
		check := func(want string, within time.Duration) {
			t.Helper()
			start := time.Now()
			got := said(d.Read(t.Context()))
			if !strings.HasPrefix(got, want) || strings.Contains(got, "(") != strings.Contains(want, "(") || time.Since(start) > within {
				t.Errorf("%q after %v, want %q within %v", got, time.Since(start), want, within)
			}
		}
		check("a", 0)
		hangs = make(chan struct{})
		write(text("b"))
		fault := "a (" + filepath.Base(dir) + ": it does not answer within 10s"
		for range 3 {
			check(fault, Limit)
			time.Sleep(time.Minute)
			check(fault, 0)
		}
		if n := begun.Load(); n != 1 {
			t.Errorf("%d readings hang", n)
		}
		close(hangs)
		synctest.Wait()
		check("b", 0)
	})
}

// TestNeverTheSame: a file that somebody writes all the time is named. It counts when that ends.
func TestNeverTheSame(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d := At(dir, 2*time.Second)
		write := func(name, text string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		check := func(want string) {
			t.Helper()
			if got := said(d.Read(t.Context())); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
		write("a.yaml", text("a"))
		write("b.yaml", text("b"))
		check("…")
		time.Sleep(2 * time.Second)
		check("a b")
		for n := range 2 * int(Limit/time.Second) {
			write("b.yaml", text("c", fmt.Sprint("n", n)))
			if n < int(Limit/time.Second) {
				check("a b …")
			} else {
				check("a b (b.yaml: it changes all the time, and counts once it has stayed the same for 2s; what it had before counts) …")
			}
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		check("a c n19")
		write("b.yaml", text("b"))
		check("a c n19 …")
	})
}

// TestPanic: a reading that panics is a fault, and no end of anything else.
func TestPanic(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x.yaml"), []byte(text("a")), 0o600); err != nil {
		t.Fatal(err)
	}
	d := At(dir, 0)
	check := func(want string) {
		t.Helper()
		if got := said(d.Read(t.Context())); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	check("a")
	d.load = func(string) ([]byte, error) { panic("no such luck") }
	for range 2 {
		check("a (" + filepath.Base(dir) + ": panic: no such luck; what was read before counts)")
	}
	d.load = readFile
	check("a")
}

// TestReplaced: where the directory is a link that leads elsewhere now, its files are the same
// files. What cannot be read for a moment has what it had before.
func TestReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"v1/a.yaml": text("a"), "v1/sub/b.yaml": text("b"), "v1/sub-c.yaml": text("c"), "v2/a.yaml": text("a", "new"), "v2/sub/b.yaml": text("b"),
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "current")
	to := func(version string) {
		_ = os.Remove(link)
		if err := os.Symlink(version, link); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		d := At(link, 2*time.Second)
		check := func(when, want string) {
			t.Helper()
			got := said(d.Read(t.Context()))
			if got != want && (!strings.Contains(want, "(") || !strings.HasPrefix(got, want)) {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		to("v1")
		check("new", "…")
		time.Sleep(2 * time.Second)
		check("settled", "a b c")
		unreadable := map[string]bool{"b.yaml": true}
		d.load = func(path string) ([]byte, error) {
			if unreadable[filepath.Base(path)] {
				return nil, errors.New("stale")
			}
			return readFile(path)
		}
		check("a file", "a b c (b.yaml: stale")
		unreadable = nil
		check("and again", "a b c")
		sub := filepath.Join(dir, "v1", "sub")
		if err := errors.Join(os.Rename(sub, sub+".away"), os.Symlink("/", sub)); err != nil {
			t.Fatal(err)
		}
		check("a directory", "a b c (sub: it is a link to a directory")
		to("nowhere")
		check("all", "a b c (current: ")
		to("v2")
		check("another one", "a b …")
		time.Sleep(2 * time.Second)
		check("which counts", "a new b")
	})
}

// TestSlowDisk: who reads a slow disk again and again waits once, and then has what the reading
// before has found. What was read long ago is not returned.
func TestSlowDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d := At(dir, 0)
		none := "(" + filepath.Base(dir) // nothing is known at all
		var takes atomic.Int64
		takes.Store(int64(Limit + 2*time.Second))
		d.load = func(path string) ([]byte, error) {
			time.Sleep(time.Duration(takes.Load()))
			return readFile(path)
		}
		check := func(name, want string, within time.Duration) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(dir, "x.yaml"), []byte(text(name)), 0o600); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			got := said(d.Read(t.Context()))
			if took := time.Since(start); strings.Split(got, ":")[0] != want || strings.HasSuffix(got, "?") != (want == none) || took != within {
				t.Errorf("%q after %v, want %q after %v", got, took, want, within)
			}
			time.Sleep(30*time.Second - time.Since(start))
		}
		check("a", none, Limit)
		check("b", "a", 0)
		check("c", "b", 0)
		time.Sleep(old)
		check("d", "c "+none, Limit)
		takes.Store(int64(time.Second))
		check("e", "d", 0)
		check("f", "f", time.Second)
	})
}

// TestLateIsNotUnderWay: a late reading is what the next Read returns once it has ended, and not
// before. Others hold the lock so long that a reading waits for them each time that it takes it.
func TestLateIsNotUnderWay(t *testing.T) {
	t.Parallel()
	d := At(t.TempDir(), -1)
	var early, ended atomic.Bool
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			for !ended.Load() {
				d.mu.Lock()
				if d.late != nil && d.late == d.under {
					early.Store(true)
				}
				for since := time.Now(); time.Since(since) < 2*time.Millisecond; {
					continue
				}
				d.mu.Unlock()
			}
		})
	}
	for range 60 {
		f := &flight{begun: time.Now().Add(-Limit), done: make(chan struct{})}
		d.mu.Lock()
		d.under, d.late = f, nil
		d.mu.Unlock()
		d.fly(f)
	}
	ended.Store(true)
	others.Wait()
	if early.Load() {
		t.Error("a reading is late while it is under way")
	}
}
