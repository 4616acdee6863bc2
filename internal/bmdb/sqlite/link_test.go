package sqlite

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
)

// made returns the path of a database in a directory of its own, and that of a file elsewhere.
func made(t *testing.T) (path, victim string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "bmdb")
	e, err := Open(t.Context(), path, Options{Unsynced: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.Migrate(t.Context()), e.Close()); err != nil {
		t.Fatal(err)
	}
	victim = filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(victim, []byte("root:x:0:0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return path, victim
}

// unharmed fails if anything was done to the victim.
func unharmed(t *testing.T, victim string) {
	t.Helper()
	text, err := os.ReadFile(victim)
	if err != nil || string(text) != "root:x:0:0\n" {
		t.Errorf("the victim has %.20q, %v", text, err)
	}
	if info, err := os.Stat(victim); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the victim has another mode, or is gone: %v", err)
	}
}

// TestNoLinkIsFollowed: root may open the database of a service, and whoever has that service's
// account may put any link beside it.
func TestNoLinkIsFollowed(t *testing.T) {
	t.Parallel()
	for _, suffix := range []string{".lock", markSuffix, "-wal", "-shm", "-journal"} {
		for kind, link := range map[string]func(from, to string) error{"symbolic link": os.Symlink, "more than one name": os.Link} {
			t.Run(suffix+" "+kind, func(t *testing.T) {
				t.Parallel()
				path, victim := made(t)
				if err := os.Remove(path + suffix); err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
				if err := link(victim, path+suffix); err != nil {
					t.Fatal(err)
				}
				e, err := Open(t.Context(), path, Options{Unsynced: true})
				if err == nil {
					_ = e.Close()
				}
				if fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), suffix) || !strings.Contains(err.Error(), kind) {
					t.Errorf("opened: %v", err)
				}
				unharmed(t, victim)
			})
		}
	}
	t.Run("nothing is made", func(t *testing.T) {
		t.Parallel()
		backup, victim := made(t)
		path := filepath.Join(t.TempDir(), "bmdb")
		if err := errors.Join(os.Remove(victim), os.Symlink(victim, path+".lock")); err != nil {
			t.Fatal(err)
		}
		if err := Restore(t.Context(), backup, path); fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("restored: %v", err)
		}
		if _, err := os.Lstat(victim); !os.IsNotExist(err) {
			t.Errorf("what the link names: %v", err)
		}
	})
}

// TestLinkToTheDatabase: root, or the service itself, may have put the file on another disk.
func TestLinkToTheDatabase(t *testing.T) {
	t.Parallel()
	path, _ := made(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	uses := map[string]func() error{
		"open": func() error {
			e, err := Open(t.Context(), link, Options{Unsynced: true})
			if err != nil {
				return err
			}
			return e.Close()
		},
		"schema": func() error { _, _, err := SchemaOf(t.Context(), link); return err },
		"backup": func() error { return Backup(t.Context(), link, filepath.Join(t.TempDir(), "backup")) },
	}
	for name, use := range uses {
		if err := use(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if os.Getuid() != 0 {
		return // only root can make a link of somebody else's
	}
	if err := os.Lchown(link, 4242, 4242); err != nil {
		t.Fatal(err)
	}
	for name, use := range uses {
		if err := use(); fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), link+" is a symbolic link") {
			t.Errorf("%s, somebody else's link: %v", name, err)
		}
	}
}

// TestOneLockByAnyName: whoever has the database open has it by each of its names, also when the
// file was not there before.
func TestOneLockByAnyName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "bmdb")
	link, another := filepath.Join(t.TempDir(), "link"), filepath.Join(t.TempDir(), "another")
	elsewhere := filepath.Join(t.TempDir(), "state")
	if err := errors.Join(os.Symlink(path, link), os.Symlink(link, another), os.Symlink(dir, elsewhere)); err != nil {
		t.Fatal(err)
	}
	names := []string{link, path, another, filepath.Join(elsewhere, "bmdb")}
	for _, held := range names { // by the link first, when there is no file
		e, err := Open(t.Context(), held, Options{Unsynced: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			for what, use := range map[string]func() error{
				"opened": func() error {
					e, err := Open(t.Context(), name, Options{Unsynced: true})
					if err != nil {
						return err
					}
					return e.Close()
				},
				"restored": func() error { return Restore(t.Context(), filepath.Join(dir, "backup"), name) },
			} {
				err := use()
				want := fmt.Sprintf("database %s is in use by another process (pid %d)", name, os.Getpid())
				if fleet.KindOf(err) != fleet.KindInUse || !strings.Contains(err.Error(), want) {
					t.Errorf("open by %s, and %s by %s: %v", held, what, name, err)
				}
			}
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestRestoreThroughALink: the file that a link names is put back where it was.
func TestRestoreThroughALink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, link, backup := filepath.Join(t.TempDir(), "bmdb"), filepath.Join(dir, "link"), filepath.Join(dir, "backup")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	e, err := Open(t.Context(), link, Options{Unsynced: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.Migrate(t.Context()), e.Close(), Backup(t.Context(), link, backup)); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if err := Restore(t.Context(), backup, link); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}

// TestDirectoryMayBeALink: an operator moves the state to a bigger disk.
func TestDirectoryMayBeALink(t *testing.T) {
	t.Parallel()
	path, _ := made(t)
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Symlink(filepath.Dir(path), dir); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "bmdb")
	backup := filepath.Join(dir, "backup")
	if err := Backup(t.Context(), path, backup); err != nil {
		t.Error(err)
	}
	if err := Restore(t.Context(), backup, filepath.Join(dir, "other")); err != nil {
		t.Error(err)
	}
	e, err := Open(t.Context(), path, Options{Unsynced: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
