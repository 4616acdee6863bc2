package secret_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
)

// write makes a file of exactly that mode, whatever the umask is.
func write(t *testing.T, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func modeOf(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

func TestRead(t *testing.T) {
	t.Parallel()
	for _, mode := range []os.FileMode{0o600, 0o400, 0o700} {
		if content, err := secret.Read(write(t, mode), 7); err != nil || string(content) != "hunter2" {
			t.Errorf("mode %o: %q, %v", mode, content, err)
		}
	}
	for _, mode := range []os.FileMode{0o604, 0o602, 0o601, 0o620, 0o610, 0o644, 0o666} {
		path := write(t, mode)
		_, err := secret.Read(path, 7)
		if fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), "chmod 600 "+path) {
			t.Errorf("mode %o: %v", mode, err)
		}
		if checked := secret.Check(path); checked == nil || checked.Error() != err.Error() {
			t.Errorf("mode %o: Check says %v", mode, checked)
		}
	}
	path := write(t, 0o600)
	for name, call := range map[string]func() ([]byte, error){
		"has more than 6 bytes":                           func() ([]byte, error) { return secret.Read(path, 6) },
		"is a directory, and a file is expected":          func() ([]byte, error) { return secret.Read(filepath.Dir(path), 6) },
		"/x cannot be read: not a directory":              func() ([]byte, error) { return secret.Read(path+"/x", 6) },
		"/nowhere cannot be read: no such file or direct": func() ([]byte, error) { return secret.Read("/nowhere", 6) },
	} {
		if _, err := call(); fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := secret.Read("/dev/null", 1); err != nil {
		t.Errorf("what is no regular file: %v", err)
	}
}

// TestPasses holds to it what is looked at again, and what is a person's to mend.
func TestPasses(t *testing.T) {
	t.Parallel()
	path, loop := write(t, 0o600), filepath.Join(t.TempDir(), "loop")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	pair := func(certificate, key string) error {
		_, err := secret.ReadKeyPair(certificate, key)
		return err
	}
	for name, test := range map[string]struct {
		err    error
		passes bool
	}{
		"not there":                {secret.Check(path + ".not"), true},
		"directory not there":      {secret.Check("/nowhere/x"), true},
		"key not there":            {pair(path, path+".not"), true},
		"certificate not there":    {pair(path+".not", path), true},
		"below a file":             {secret.Check(path + "/x"), false},
		"a directory":              {secret.Check(filepath.Dir(path)), false},
		"open to others":           {secret.Check(write(t, 0o644)), false},
		"a link to itself":         {secret.Check(loop), false},
		"no certificate":           {pair(path, path), false},
		"a directory below a file": {secret.MakeDir(path + "/x"), false},
	} {
		if got := secret.Passes(fmt.Errorf("token: %w", test.err)); test.err == nil || got != test.passes {
			t.Errorf("%s: %v passes: %v", name, test.err, got)
		}
	}
	// It is open, and the disk does not give what is in it: nothing is mapped at its beginning.
	if _, err := secret.Read("/proc/self/mem", 1); fleet.KindOf(err) != fleet.KindInvalid || !secret.Passes(err) {
		t.Errorf("a fault of the disk: %v", err)
	}
}

// TestGroup needs root to give files away.
func TestGroup(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 && os.Getenv("CI") == "" {
		t.Skip("only root can give a file to somebody else: run this test as root")
	}
	path := write(t, 0o640)
	if err := secret.Check(path); err != nil {
		t.Errorf("the group of a file of root's may read it: %v", err)
	}
	if err := os.Chown(path, 4242, 4242); err != nil {
		t.Fatal(err)
	}
	if err := secret.Check(path); err == nil {
		t.Error("the group of anybody else's file may not")
	}
}

func TestStaysHere(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"localhost": true, "api.localhost": true, "127.0.0.1": true, "127.77.7.7": true, "::1": true, "[::1]": true, "::ffff:127.0.0.1": true,
		"": false, "0.0.0.0": false, "::": false, "192.0.2.1": false, "localhost.example": false, "mylocalhost": false,
	} {
		if got := secret.StaysHere(host); got != want {
			t.Errorf("%q: %v", host, got)
		}
	}
}

func TestMakeDirAndClose(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "b")
	for range 2 {
		if err := secret.MakeDir(dir); err != nil || modeOf(t, dir) != 0o700 {
			t.Errorf("%v, %o", err, modeOf(t, dir))
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	shared := filepath.Join(dir, "shared")
	if err := os.Mkdir(shared, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(shared, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	// Others enter what is below, as with /etc.
	above := filepath.Join(dir, "etc")
	if err := os.MkdirAll(filepath.Join(above, "ssl"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, all := range []string{shared, above, "/"} {
		before := modeOf(t, all)
		if err := secret.MakeDir(all); fleet.KindOf(err) != fleet.KindInvalid || modeOf(t, all) != before {
			t.Errorf("%s is for all: %v, mode %o", all, err, modeOf(t, all))
		}
	}
	path := write(t, 0o644)
	if err := secret.Close(path); err != nil || modeOf(t, path) != 0o600 {
		t.Errorf("%v, %o", err, modeOf(t, path))
	}
	if err := secret.Close(path + ".none"); err != nil {
		t.Errorf("nothing to close: %v", err)
	}
}

// TestADirectoryThatIsNotOursToMake: the system lets nobody make one there, not even root.
func TestADirectoryThatIsNotOursToMake(t *testing.T) {
	t.Parallel()
	err := secret.MakeDir("/sys/herd/data")
	if fleet.KindOf(err) != fleet.KindInvalid || !strings.HasPrefix(err.Error(), "make directory: mkdir /sys/herd: ") ||
		!strings.Contains(err.Error(), ": name a directory that ") {
		t.Error(err)
	}
}

// TestOwned: what is none of ours to change is neither opened, closed nor found to be in order.
func TestOwned(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	victim := write(t, 0o644)
	if err := errors.Join(os.Symlink(victim, at("link")), os.Symlink(at("nothing"), at("dangling")), os.Link(victim, at("hard")),
		os.Mkdir(at("directory"), 0o700), syscall.Mkfifo(at("pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	wants := map[string]string{
		"link": "is a symbolic link", "dangling": "is a symbolic link", "hard": "has more than one name",
		"directory": "directory", "pipe": "is not a regular file",
	}
	if os.Getuid() == 0 {
		wants["theirs"] = "belongs to user 4242, and its directory to user 0"
		if err := errors.Join(os.WriteFile(at("theirs"), nil, 0o644), os.Chown(at("theirs"), 4242, 4242)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range wants {
		file, err := secret.Create(at(name))
		if err == nil {
			_ = file.Close()
		}
		for what, err := range map[string]error{"create": err, "close": secret.Close(at(name)), "owned": secret.Owned(at(name))} {
			if fleet.KindOf(err) != fleet.KindInvalid && what != "create" || err == nil || !strings.Contains(err.Error(), want) && name != "directory" {
				t.Errorf("%s %s: %v", what, name, err)
			}
		}
	}
	if _, err := os.Lstat(at("nothing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a link names: %v", err)
	}
	if mode := modeOf(t, victim); mode != 0o644 {
		t.Errorf("the victim has mode %o", mode)
	}
	if err := secret.Owned(at("nothing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	file := filepath.Join(elsewhere, "file") // which need not be there
	if err := errors.Join(os.Symlink(file, at("first")), os.Symlink("first", at("second")), os.Symlink("loop", at("loop")),
		os.Symlink(dir, at("dir"))); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{at("first"): file, at("dir/second"): file, file: file, at("dir/none"): at("none")} {
		if got, err := secret.Follow(path); err != nil || got != want {
			t.Errorf("%s: %s, %v", path, got, err)
		}
	}
	refused := []string{at("loop"), at("none/file")}
	if os.Getuid() == 0 {
		if err := os.Lchown(at("first"), 4242, 4242); err != nil {
			t.Fatal(err)
		}
		refused = append(refused, at("first"), at("second"))
	}
	for _, path := range refused {
		if got, err := secret.Follow(path); fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("%s: %s, %v", path, got, err)
		}
	}
}
