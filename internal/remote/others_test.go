package remote

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestOtherVersionsAreRemoved, but not one that a process runs, one that came just now, or what
// only looks like one; and none where the host does not say what its processes run.
func TestOtherVersionsAreRemoved(t *testing.T) {
	t.Parallel()
	blind := fewPrograms(t)
	if err := os.Remove(filepath.Join(blind, "ls")); err != nil {
		t.Fatal(err)
	}
	// As where nobody answers who the users are.
	nameless := fewPrograms(t)
	ls, err := exec.LookPath("ls")
	if err == nil {
		err = os.Remove(filepath.Join(nameless, "ls"))
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(nameless, "ls"), []byte("#!/bin/sh\ncase $1 in *n*) exec "+ls+" \"$@\" ;; esac\nexit 1\n"), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		environment string
		removes     bool
		runs        string // what processes run is told by its name: each case has one of its own
	}{
		"over SFTP": {"", true, "a"}, "without SFTP": {withoutSFTP, true, "b"}, "the host does not say": {"PATH=" + blind, false, "c"},
		"the host knows no names": {"PATH=" + nameless, true, "d"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSSHD(t, test.environment)
			host := s.dial(t)
			directory := t.TempDir()
			base := filepath.Join(directory, "ironherd-agent")
			digest := func(char string) string { return base + "-" + strings.Repeat(char, 64) }
			sleep, err := exec.LookPath("sleep")
			if err != nil {
				t.Fatal(err)
			}
			program, err := os.ReadFile(sleep)
			if err != nil {
				t.Fatal(err)
			}
			hour := time.Now().Add(-time.Hour)
			age := func(path string) {
				t.Helper()
				if err := os.Chtimes(path, hour, hour); err != nil {
					t.Fatal(err)
				}
			}
			old, running, fresh := digest("0"), digest(test.runs), digest("f")
			alike := []string{base, base + "-notes", old[:len(old)-1], old + "0", digest("g"), filepath.Join(directory, "other-"+strings.Repeat("0", 64))}
			// A child that another test starts meanwhile would have what is executed here open for writing.
			syscall.ForkLock.RLock()
			for _, path := range append(alike, old, running, fresh) {
				err = errors.Join(err, os.WriteFile(path, program, 0o700))
			}
			syscall.ForkLock.RUnlock()
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range append(alike, old, running) {
				age(path)
			}
			if err := os.Mkdir(digest("1"), 0o700); err != nil {
				t.Fatal(err)
			}
			age(digest("1"))
			if err := os.Symlink(old, digest("2")); err != nil {
				t.Fatal(err)
			}
			process := exec.Command(running)
			process.Args = []string{"sleep", "600"}
			if err := process.Start(); err != nil {
				t.Fatal(err)
			}
			end := func() { _ = process.Process.Kill(); _ = process.Wait() }
			defer end()

			content := newContent([]byte("#!the next version\n"))
			uploaded, err := host.Upload(t.Context(), content, base, 0o700)
			if err != nil {
				t.Fatal(err)
			}
			stay := append(alike, running, fresh, digest("1"), digest("2"), uploaded.Path)
			if !test.removes {
				stay = append(stay, old)
			}
			wantFiles(t, directory, slices.Clone(stay))

			end()
			age(fresh)
			age(uploaded.Path)
			if again, err := host.Upload(t.Context(), content, base, 0o700); err != nil || again.Sent != 0 {
				t.Fatalf("%+v, %v", again, err)
			}
			if test.removes {
				stay = slices.DeleteFunc(stay, func(path string) bool { return path == running || path == fresh })
			}
			wantFiles(t, directory, slices.Clone(stay))
		})
	}
}

// wantFiles fails unless a directory has these files, and no others.
func wantFiles(t *testing.T, directory string, want []string) {
	t.Helper()
	entries, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	slices.Sort(want)
	for i := range want {
		want[i] = filepath.Base(want[i])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("there are other files than those that should stay:\n%s", diff)
	}
}

// leaveLongAgo makes a file, and an hour old what is in its directory.
func leaveLongAgo(t *testing.T, name string) {
	t.Helper()
	err := os.WriteFile(name, []byte("left by another"), 0o600)
	entries, errRead := os.ReadDir(filepath.Dir(name))
	hour := time.Now().Add(-time.Hour)
	for _, entry := range entries {
		err = errors.Join(err, os.Chtimes(filepath.Join(filepath.Dir(name), entry.Name()), hour, hour))
	}
	if err = errors.Join(err, errRead); err != nil {
		t.Fatal(err)
	}
}
