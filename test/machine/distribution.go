package machine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// distribution is an operating system other than that of this host, made of its own packages:
// kernel, systemd and OpenSSH as they come.
type distribution struct {
	name, suite, mirror, components string
	// keyring is the file of its archive's keys. A name without a directory lies beside this file.
	keyring string
	kernel  string
}

const (
	debianKeys = "/usr/share/keyrings/debian-archive-keyring.gpg"
	// ubuntuKeys is the "Ubuntu Archive Automatic Signing Key (2018)", with the fingerprint
	// F6EC B376 2474 EDA9 D21B 7022 8719 20D1 991B C93C.
	ubuntuKeys = "ubuntu-archive.asc"
)

// distributions are the systems besides this host's that are taken over.
var distributions = []distribution{
	{
		name: "Debian 13", suite: "trixie", mirror: "http://deb.debian.org/debian", components: "main",
		keyring: debianKeys, kernel: "linux-image-cloud-amd64",
	},
	{
		name: "Debian 11", suite: "bullseye", mirror: "http://deb.debian.org/debian", components: "main",
		keyring: debianKeys, kernel: "linux-image-amd64",
	},
	{
		name: "Ubuntu 24.04", suite: "noble", mirror: "http://archive.ubuntu.com/ubuntu", components: "main",
		keyring: ubuntuKeys, kernel: "linux-image-virtual",
	},
	{
		name: "Ubuntu 22.04", suite: "jammy", mirror: "http://archive.ubuntu.com/ubuntu", components: "main",
		keyring: ubuntuKeys, kernel: "linux-image-generic",
	},
}

// installed is a distribution on a disk without partitions, and what boots it.
type installed struct{ disk, kernel, initrd string }

// distributionSize is the size of the disk, the same that all disks of machines have.
const distributionSize = 3 << 30

// get returns the distribution from the cache, and puts it together where it is not there.
func (d distribution) get(ctx context.Context, b *Base, log func(string)) (installed, error) {
	sum := sha256.Sum256([]byte(fmt.Sprintf("2 %+v", d)))
	dir := filepath.Join(b.dir, d.suite+"-"+hex.EncodeToString(sum[:4]))
	i := installed{disk: filepath.Join(dir, "disk.raw"), kernel: filepath.Join(dir, "vmlinuz"), initrd: filepath.Join(dir, "initrd.img")}
	if _, err := os.Stat(i.disk); err == nil {
		return i, nil
	}
	log("putting " + d.name + " together, once")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil { //nolint:gosec // other users configure packages in it
		return i, err
	}
	if err := d.build(ctx, b, dir, i); err != nil {
		return i, fmt.Errorf("put %s together: %w", d.name, err)
	}
	return i, nil
}

func (d distribution) build(ctx context.Context, b *Base, dir string, i installed) error {
	tree := filepath.Join(dir, "tree")
	keyring, err := filepath.Abs(d.keyring)
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory", "--architectures=amd64",
		"--include=systemd-sysv,udev,kmod,iproute2,openssh-server,initramfs-tools,dbus,"+d.kernel, "--aptopt="+filepath.Join(b.dir, "apt.conf"),
		"--customize-hook=chroot \"$1\" systemctl enable systemd-networkd ssh", d.suite, tree,
		fmt.Sprintf("deb [signed-by=%s] %s %s %s", keyring, d.mirror, d.suite, d.components))
	// What it mounts must not be seen outside, so that removing the tree removes the tree alone.
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("mmdebstrap: %w: %s", err, out[max(0, len(out)-2000):])
	}
	public, err := os.ReadFile(b.key + ".pub")
	if err != nil {
		return err
	}
	for path, text := range map[string]string{
		"root/.ssh/authorized_keys":           string(public),
		"etc/systemd/network/80-dhcp.network": "[Match]\nType=ether\n\n[Network]\nDHCP=yes\n",
		"etc/hostname":                        d.suite + "\n",
		"etc/resolv.conf":                     "nameserver 10.0.2.3\n",
	} {
		path = filepath.Join(tree, path)
		_ = os.Remove(path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o644)); err != nil { //nolint:gosec // as everywhere
			return err
		}
	}
	for prefix, to := range map[string]string{"vmlinuz-": i.kernel, "initrd.img-": i.initrd} {
		found, err := filepath.Glob(filepath.Join(tree, "boot", prefix+"*"))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("its packages brought %d files %s*, and one is wanted: %w", len(found), prefix, err)
		}
		if _, err := output(ctx, "cp", found[0], to); err != nil {
			return err
		}
	}
	partial := i.disk + ".new"
	if _, err := output(ctx, "mke2fs", "-q", "-t", "ext4", "-L", "root", "-d", tree, partial, fmt.Sprint(distributionSize/1024)); err != nil {
		return err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), tree) {
		return fmt.Errorf("something is still mounted below %s: unmount it, then remove it: %w", tree, err)
	}
	return errors.Join(os.RemoveAll(tree), os.Rename(partial, i.disk))
}
