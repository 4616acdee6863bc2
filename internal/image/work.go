package image

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
)

// workMark begins the names of directories of builds. No other program uses it.
const workMark = ".ironherd-image-"

// workMarkHere begins the names of those of this host. On a file system that hosts share, such as
// NFS, the lock of a directory is one of its host alone, so that no host may judge by it what
// another one has made.
func workMarkHere() string {
	host, err := os.ReadFile("/etc/machine-id")
	if err != nil || len(bytes.TrimSpace(host)) == 0 {
		name, _ := os.Hostname()
		host = []byte(name)
	}
	sum := sha256.Sum256(bytes.TrimSpace(host))
	return workMark + hex.EncodeToString(sum[:4]) + "-"
}

// makeWork makes a directory for a build in dir, and removes those of builds that were killed.
func (b *builder) makeWork(dir string) error {
	b.removeAbandoned(dir)
	for {
		work, err := os.MkdirTemp(dir, workMarkHere()+"*")
		if err != nil {
			return fmt.Errorf("make a directory for the build beside %s: %w", b.Output, err)
		}
		lock, err := os.Open(work)
		if err == nil {
			// Where the file system has no locks, nobody gets one, and so nobody removes it either.
			_ = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
			// The tree is entered by users of its own while packages are configured.
			if err = lock.Chmod(0o755); err == nil {
				_, err = os.Lstat(work)
			}
			if err == nil {
				b.work, b.lock = work, lock
				return nil
			}
			_ = lock.Close()
		}
		if !errors.Is(err, fs.ErrNotExist) { // another build took it for abandoned before it was locked
			return errors.Join(fmt.Errorf("hold the directory of the build: %w", err), os.Remove(work))
		}
	}
}

// removeAbandoned removes from dir what builds of this host that were killed have left there, each
// a whole system. The lock of such a directory is free when the tools of its build have ended, too.
func (b *builder) removeAbandoned(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // whoever makes a directory there says what is wrong
	}
	for _, entry := range entries {
		if path := filepath.Join(dir, entry.Name()); strings.HasPrefix(entry.Name(), workMarkHere()) && entry.IsDir() {
			if err := removeUnlocked(path); err == nil {
				b.Log("removed " + path + ", which a build that was killed has left")
			} else if !errors.Is(err, syscall.EWOULDBLOCK) {
				b.Log(err.Error())
			}
		}
	}
}

func removeUnlocked(path string) error {
	lock, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	return removeWork(path)
}

// removeWork removes what a build has made, unless a tool was killed so hard that it left something
// mounted there: what is behind that is the host's own.
func removeWork(path string) error {
	var mounts []*mountinfo.Info
	resolved, err := filepath.EvalSymlinks(path) // as the kernel names it
	if err == nil {
		mounts, err = mountinfo.GetMounts(mountinfo.PrefixFilter(resolved))
	}
	if err != nil {
		return fmt.Errorf("the directory %s was left: %w", path, err)
	}
	if len(mounts) > 0 {
		return fmt.Errorf("something is still mounted below %s: unmount it, then remove that directory", path)
	}
	return os.RemoveAll(path)
}
