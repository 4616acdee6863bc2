package demo

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestRemainsAreRemoved, and nothing else that is in the temporary directory.
func TestRemainsAreRemoved(t *testing.T) {
	t.Parallel()
	parent, elsewhere := t.TempDir(), t.TempDir()
	put := func(parts ...string) {
		t.Helper()
		path := filepath.Join(parts...)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, from string) {
		t.Helper()
		if err := os.Symlink(to, from); err != nil {
			t.Fatal(err)
		}
	}
	// Two demos, of which one was killed: the system took its lock.
	running, lock, err := makeOwn(parent)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	killed, lock, err := makeOwn(parent)
	if err != nil {
		t.Fatal(err)
	}
	put(killed, "world", "hosts", "a", "etc", "passwd")
	put(elsewhere, "precious")
	link(elsewhere, filepath.Join(killed, "world", "hosts", "b"))
	link(elsewhere, filepath.Join(killed, "herd"))
	// A child that another test starts just now has a copy of it until it is another program.
	if err := errors.Join(syscall.Flock(int(lock.Fd()), syscall.LOCK_UN), lock.Close()); err != nil {
		t.Fatal(err)
	}

	put(elsewhere, lockName)
	link(elsewhere, filepath.Join(parent, ownPrefix+"link"))
	put(parent, ownPrefix+"file")
	put(parent, ownPrefix+"unlocked", "x")
	put(parent, ownPrefix+"lock-is-a-link", "x")
	link(filepath.Join(elsewhere, lockName), filepath.Join(parent, ownPrefix+"lock-is-a-link", lockName))
	put(parent, "another", lockName)
	keep := []string{
		filepath.Base(running), ownPrefix + "link", ownPrefix + "file", ownPrefix + "unlocked", ownPrefix + "lock-is-a-link", "another",
	}
	if os.Geteuid() == 0 { // who else can give a directory away?
		put(parent, ownPrefix+"others", lockName)
		if err := os.Chown(filepath.Join(parent, ownPrefix+"others"), 4242, 4242); err != nil {
			t.Fatal(err)
		}
		keep = append(keep, ownPrefix+"others")
	}

	var log bytes.Buffer
	removeRemains(parent, slog.New(slog.NewTextHandler(&log, nil)))
	var left []string
	entries, err := os.ReadDir(parent)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	slices.Sort(keep)
	if err != nil || !slices.Equal(left, keep) || log.Len() > 0 {
		t.Errorf("left %q, want %q: %v, %s", left, keep, err, &log)
	}
	outside := map[string]bool{}
	entries, _ = os.ReadDir(elsewhere)
	for _, e := range entries {
		outside[e.Name()] = true
	}
	if !maps.Equal(outside, map[string]bool{"precious": true, lockName: true}) {
		t.Errorf("where links lead there is %v", outside)
	}
	if _, err := os.Stat(filepath.Join(running, lockName)); err != nil {
		t.Errorf("a running demo: %v", err)
	}
}

// TestNoLockIsFreeBeforeItIsTaken: demos that begin at the same time leave each other alone.
func TestNoLockIsFreeBeforeItIsTaken(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	begun := make(chan struct{})
	var sweepers sync.WaitGroup
	for range 2 {
		sweepers.Go(func() {
			for {
				select {
				case <-begun:
					return
				default:
					removeRemains(parent, slog.New(slog.DiscardHandler))
				}
			}
		})
	}
	for range 500 {
		dir, lock, err := makeOwn(parent)
		if err == nil {
			_, err = os.Stat(filepath.Join(dir, lockName))
		}
		if err != nil {
			t.Error(err)
			break
		}
		if err := errors.Join(os.RemoveAll(dir), lock.Close()); err != nil {
			t.Error(err)
		}
	}
	close(begun)
	sweepers.Wait()
}

// TestNoTemporaryDirectory: without --dir, the environment names where a demo keeps its own.
func TestNoTemporaryDirectory(t *testing.T) {
	t.Parallel()
	parent := filepath.Join(t.TempDir(), "none")
	_, _, err := makeOwn(parent)
	if text := err.Error(); fleet.KindOf(err) != fleet.KindInvalid || !strings.HasPrefix(text, "make a directory: ") || !strings.Contains(text, parent) ||
		!strings.HasSuffix(text, ": set TMPDIR to a directory of yours, or name one with --dir") {
		t.Error(err)
	}
}
