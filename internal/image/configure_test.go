package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTheSameTreeWhateverTheUmask: who builds an image may have a umask that closes files to
// others, or one that closes nothing. The umask is the process's, so nothing runs in parallel.
func TestTheSameTreeWhateverTheUmask(t *testing.T) {
	trees := map[int]string{}
	for _, umask := range []int{0o022, 0o077, 0} {
		tree := packages(t)
		agent := filepath.Join(t.TempDir(), "agent")
		if err := os.WriteFile(agent, []byte("agent"), 0o600); err != nil {
			t.Fatal(err)
		}
		b := &builder{Options: Options{Agent: agent, AuthorizedKeys: []byte("ssh-ed25519 AAAA\n")}.withDefaults(), seed: [32]byte{1}}
		before := syscall.Umask(umask)
		err := b.configure(t.Context(), tree)
		syscall.Umask(before)
		if err != nil {
			t.Fatal(err)
		}
		trees[umask] = modes(t, tree)
	}
	for umask, got := range trees {
		if diff := cmp.Diff(strings.Split(trees[0o022], "\n"), strings.Split(got, "\n")); diff != "" {
			t.Errorf("umask %03o (-022 +%03o):\n%s", umask, umask, diff)
		}
	}
	for _, want := range []string{
		"drwxr-xr-x usr/lib/ironherd\n", "-rwxr-xr-x usr/lib/ironherd/ironherd-agent\n", "drwxr-xr-x etc/systemd/system/multi-user.target.wants\n",
		"Lrwxrwxrwx etc/systemd/system/multi-user.target.wants/ironherd-ssl-cert.service\n", "-rw-r--r-- etc/systemd/system/ironherd-ssl-cert.service\n",
		"drwx------ root/.ssh\n", "-rw------- root/.ssh/authorized_keys\n", "drwxr-x--- boot\n",
	} {
		if !strings.Contains(trees[0o022], want) {
			t.Errorf("no %q in\n%s", want, trees[0o022])
		}
	}
}

// TestTheFirstBootIsLookedAtOnEachBoot: what says that it is done may have come with an image that
// was read from an installed disk, so no file decides it.
func TestTheFirstBootIsLookedAtOnEachBoot(t *testing.T) {
	t.Parallel()
	unit, err := files.ReadFile("trees/firstboot/etc/systemd/system/ironherd-firstboot.service")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(unit)) {
		if strings.HasPrefix(line, "Condition") || strings.HasPrefix(line, "Assert") {
			t.Errorf("the unit has a condition: %s", line)
		}
	}
}

// TestNothingOfTheBuildIsLeft: what belongs to one machine, or to the host of the build, is in no
// image; what only looks like that stays.
func TestNothingOfTheBuildIsLeft(t *testing.T) {
	t.Parallel()
	tree := packages(t)
	gone := []string{
		"etc/.resolv.conf.systemd-resolved.bak", "etc/ssh/ssh_host_ed25519_key", "etc/ssh/ssh_host_ed25519_key.pub", "etc/apt/apt.conf.d/99mmdebstrap",
		"var/lib/systemd/random-seed", "var/lib/dbus/machine-id", "var/cache/ldconfig/aux-cache", "var/cache/apt/pkgcache.bin", "var/log/dpkg.log",
		"var/log/apt/history.log", "var/log/btmp", "var/log/lastlog", "var/log/wtmp", "var/log/faillog", "etc/shadow-", "initrd.img.old", "vmlinuz.old",
		"etc/ssl/private/ssl-cert-snakeoil.key", "etc/ssl/certs/ssl-cert-snakeoil.pem",
	}
	stays := []string{"etc/resolv.conf", "etc/ssh/sshd_config", "etc/apt/apt.conf.d/01autoremove", "etc/shadow", "var/log/README", "vmlinuz", "etc/ssl/certs/ca.pem"}
	for _, name := range slices.Concat(gone, stays, []string{"etc/machine-id"}) {
		if err := write(filepath.Join(tree, name), []byte("of the build"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"etc/ssl/certs/0a1b2c3d.0": "ssl-cert-snakeoil.pem", "etc/ssl/certs/0a1b2c3d.1": "ca.pem"} {
		if err := os.Symlink(to, filepath.Join(tree, name)); err != nil {
			t.Fatal(err)
		}
	}
	gone, stays = append(gone, "etc/ssl/certs/0a1b2c3d.0"), append(stays, "etc/ssl/certs/0a1b2c3d.1")
	if err := cleanTree(tree); err != nil {
		t.Fatal(err)
	}
	for _, name := range gone {
		if _, err := os.Lstat(filepath.Join(tree, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is in the image: %v", name, err)
		}
	}
	for _, name := range stays {
		if _, err := os.Lstat(filepath.Join(tree, name)); err != nil {
			t.Errorf("%s was removed: %v", name, err)
		}
	}
	if id, err := os.ReadFile(filepath.Join(tree, "etc/machine-id")); err != nil || len(id) > 0 {
		t.Errorf("each machine would be %q, %v", id, err)
	}
}

// packages is a tree with what configure needs of the packages. One directory has a mode of its
// own.
func packages(t *testing.T) string {
	t.Helper()
	tree := t.TempDir()
	for _, dir := range []string{"boot", "etc", "root", "usr/lib"} {
		if err := makeDir(filepath.Join(tree, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"boot/vmlinuz-6.1", "boot/initrd.img-6.1"} {
		if err := write(filepath.Join(tree, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(tree, "boot"), 0o750); err != nil {
		t.Fatal(err)
	}
	return tree
}

// modes lists what is in a tree.
func modes(t *testing.T, tree string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(tree, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == tree {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(tree, path)
		_, _ = fmt.Fprintln(&out, info.Mode(), name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}
