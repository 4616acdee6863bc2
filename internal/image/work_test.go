package image

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// asKilledBuild makes the test binary a build that its parent kills.
const asKilledBuild = "IRONHERD_TEST_BUILD"

// TestABuildThatWasKilled: its directory goes with the next build, but not while its tools are
// still at work there.
func TestABuildThatWasKilled(t *testing.T) {
	if dir := os.Getenv(asKilledBuild); dir != "" {
		b := &builder{Options: Options{Log: func(line string) { _, _ = os.Stdout.WriteString(line + "\n") }}}
		if err := b.makeWork(dir); err != nil {
			t.Fatal(err)
		}
		_, err := b.run(t.Context(), nil, "/bin/sh", "-c", "echo at work >&2; read line < ../go-on")
		t.Fatal("it was not killed", err)
	}
	if os.Geteuid() != 0 && os.Getenv("CI") == "" {
		t.Skip("tools are started in a mount namespace of their own, which needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "go-on"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // a tool that is left when the test fails ends, too
		if f, err := os.OpenFile(filepath.Join(dir, "go-on"), os.O_RDWR, 0); err == nil {
			_, _ = f.WriteString("go on\n")
			_ = f.Close()
		}
	})
	build := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestABuildThatWasKilled$")
	build.Env = append(os.Environ(), asKilledBuild+"="+dir)
	out, err := build.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := build.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "at work\n" {
		t.Fatalf("it says %q, %v", line, err)
	}
	if err := build.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = build.Wait()
	works := func() (all []string) {
		t.Helper()
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), workMark) {
				all = append(all, filepath.Join(dir, e.Name()))
			}
		}
		return all
	}
	left := works()
	if len(left) != 1 {
		t.Fatalf("there are %q, want the directory of the build", left)
	}
	second := &builder{Options: Options{}.withDefaults()}
	if err := second.makeWork(dir); err != nil || len(works()) != 2 {
		t.Errorf("a tool of the build that was killed is at work: %q, %v", works(), err)
	}
	// The tool ends when it reads a line, and with it the lock: whoever waits for that gets it.
	if err := os.WriteFile(filepath.Join(dir, "go-on"), []byte("go on\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Open(left[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	var told []string
	third := &builder{Options: Options{Log: func(line string) { told = append(told, line) }}}
	if err := third.makeWork(dir); err != nil || len(works()) != 2 {
		t.Errorf("nobody is at work there: %q, %v", works(), err)
	}
	if len(told) != 1 || told[0] != "removed "+left[0]+", which a build that was killed has left" {
		t.Errorf("it tells %q", told)
	}
	for _, b := range []*builder{second, third} {
		if info, err := os.Stat(b.work); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("a build has lost its directory: %v", err)
		}
		if err := b.lock.Close(); err != nil {
			t.Error(err)
		}
	}
}

// asMounter makes the test binary one that has mounts of its own.
const asMounter = "IRONHERD_TEST_MOUNTS"

// TestWhatIsMountedIsTheHosts: the directory of a build is left alone while something is mounted
// there, however its path is written, and removed when that is unmounted.
func TestWhatIsMountedIsTheHosts(t *testing.T) {
	dir := os.Getenv(asMounter)
	if dir == "" {
		if os.Geteuid() != 0 && os.Getenv("CI") == "" {
			t.Skip("a mount namespace of its own needs root")
		}
		mounter := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWhatIsMountedIsTheHosts$")
		mounter.Env = append(os.Environ(), asMounter+"="+t.TempDir())
		mounter.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		if out, err := mounter.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	host, spaced, link := filepath.Join(dir, "host"), filepath.Join(dir, "a space"), filepath.Join(dir, "link")
	file := filepath.Join(host, "file")
	err := errors.Join(os.Mkdir(host, 0o700), os.WriteFile(file, nil, 0o600), os.Mkdir(spaced, 0o700), os.Symlink(".", link))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ beside, at string }{
		"below it":        {dir, "tree/dev"},
		"in its place":    {dir, ""},
		"a space":         {spaced, "tree/dev"},
		"a symbolic link": {link, "tree/dev"},
	} {
		work, err := os.MkdirTemp(test.beside, workMark) //nolint:usetesting // its name is that of a build
		if err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(work, test.at)
		if err := errors.Join(os.MkdirAll(at, 0o700), syscall.Mount(host, at, "", syscall.MS_BIND, "")); err != nil {
			t.Fatal(err)
		}
		if err := removeWork(work); err == nil || !strings.Contains(err.Error(), "unmount it") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(file); err != nil {
			t.Fatalf("%s: the host has lost its file: %v", name, err)
		}
		if err := errors.Join(syscall.Unmount(at, 0), removeWork(work)); err != nil {
			t.Errorf("%s: unmounted: %v", name, err)
		}
		if _, err := os.Stat(work); err == nil {
			t.Errorf("%s: the directory is there still", name)
		}
	}
	if err := removeWork(filepath.Join(dir, "gone", "work")); err == nil {
		t.Error("a path that cannot be resolved is removed")
	}
}

// On a file system that hosts share, the directory of another host's build is left alone, whoever
// has its lock here.
func TestABuildOfAnotherHostIsLeftAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	theirs, ours := filepath.Join(dir, workMark+"00000000-1"), filepath.Join(dir, workMarkHere()+"1")
	for _, path := range []string{theirs, ours} {
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	b := &builder{Options: Options{}.withDefaults()}
	b.removeAbandoned(dir)
	if _, err := os.Stat(theirs); err != nil {
		t.Errorf("another host's: %v", err)
	}
	if _, err := os.Stat(ours); err == nil {
		t.Error("this host's is there still")
	}
}
