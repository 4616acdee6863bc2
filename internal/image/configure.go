package image

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"golang.org/x/sys/unix"
)

// files are what an image has besides its packages: trees/base always, trees/firstboot where it has
// an agent. Those that end in .tmpl are templates, without that end in the image.
//
//go:embed all:trees
var files embed.FS

// values are what the templates are filled with.
type values struct {
	Hostname, RootUUID, ESP string
	// Kernel is the release of the kernel, as in /boot/vmlinuz-RELEASE.
	Kernel string
	// Console is what the kernel is told of consoles.
	Console string
}

// agentPath is where the agent's executable lies in an image.
const agentPath = "usr/lib/ironherd/ironherd-agent"

// configure writes what makes the packages a system, and removes what must not be the same on every
// machine.
func (b *builder) configure(_ context.Context, tree string) error {
	kernel, err := kernelRelease(tree)
	if err != nil {
		return err
	}
	v := b.values(kernel)
	if err := install(tree, "trees/base", v); err != nil {
		return err
	}
	if b.Agent != "" {
		if err := install(tree, "trees/firstboot", v); err != nil {
			return err
		}
		if err := copyFile(filepath.Join(tree, agentPath), b.Agent, 0o755); err != nil {
			return fmt.Errorf("copy the agent's executable: %w", err)
		}
	}
	if len(b.AuthorizedKeys) > 0 {
		if err := write(filepath.Join(tree, "root/.ssh/authorized_keys"), b.AuthorizedKeys, 0o600); err != nil {
			return err
		}
	}
	enable := []string{"ironherd-host-keys.service", "ironherd-ssl-cert.service"}
	if b.Agent != "" {
		enable = append(enable, "ironherd-firstboot.service")
	}
	wants := filepath.Join(tree, "etc/systemd/system/multi-user.target.wants")
	if err := makeDir(wants, 0o755); err != nil {
		return err
	}
	for _, unit := range enable {
		if err := os.Symlink("/etc/systemd/system/"+unit, filepath.Join(wants, unit)); err != nil {
			return err
		}
	}
	return cleanTree(tree)
}

// values returns what the templates of a system with that kernel are filled with.
func (b *builder) values(kernel string) values {
	volume := b.volumeID()
	return values{
		Hostname: b.Hostname, RootUUID: b.id("root").String(), ESP: volume[:4] + "-" + volume[4:],
		Kernel: kernel, Console: "console=tty0 console=ttyS0,115200",
	}
}

// The key and the certificate that the package ssl-cert makes when it is installed.
const (
	snakeoilKey         = "etc/ssl/private/ssl-cert-snakeoil.key"
	snakeoilCertificate = "etc/ssl/certs/ssl-cert-snakeoil.pem"
)

// cleanTree removes what belongs to one machine, or to the build alone.
func cleanTree(tree string) error {
	var errs []error
	for _, pattern := range []string{
		"etc/ssh/ssh_host_*", "etc/.resolv.conf.*", "etc/apt/apt.conf.d/99mmdebstrap", "var/lib/systemd/random-seed", "var/lib/dbus/machine-id",
		"var/cache/ldconfig/aux-cache", "var/cache/apt/*.bin", "var/log/*.log", "var/log/apt/*", "var/log/btmp", "var/log/lastlog", "var/log/wtmp", "var/log/faillog",
		"etc/*-", "initrd.img.old", "vmlinuz.old",
		// of the package ssl-cert; ironherd-ssl-cert.service makes them anew
		snakeoilKey, snakeoilCertificate,
	} {
		paths, err := filepath.Glob(filepath.Join(tree, pattern))
		errs = append(errs, err)
		for _, path := range paths {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	errs = append(errs, removeLinksTo(filepath.Join(tree, snakeoilCertificate)))
	// Empty, and not missing: a system without the file takes this for its very first boot, and sets
	// its units to what the distribution likes.
	errs = append(errs, write(filepath.Join(tree, "etc/machine-id"), nil, 0o444))
	return errors.Join(errs...)
}

// removeLinksTo removes the links by which OpenSSL finds a certificate, which lie beside it and are
// named by a hash of its subject.
func removeLinksTo(certificate string) error {
	links, err := filepath.Glob(filepath.Join(filepath.Dir(certificate), "*.[0-9]*"))
	errs := []error{err}
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && filepath.Base(to) == filepath.Base(certificate) {
			errs = append(errs, os.Remove(link))
		}
	}
	return errors.Join(errs...)
}

// kernelRelease is that of the newest kernel of the tree, of which there should be one.
func kernelRelease(tree string) (string, error) {
	kernels, err := filepath.Glob(filepath.Join(tree, "boot/vmlinuz-*"))
	if err != nil {
		return "", err
	}
	if len(kernels) != 1 {
		return "", fmt.Errorf("the packages brought %d kernels, and one is wanted", len(kernels))
	}
	release := strings.TrimPrefix(filepath.Base(kernels[0]), "vmlinuz-")
	if _, err := os.Stat(filepath.Join(tree, "boot/initrd.img-"+release)); err != nil {
		return "", fmt.Errorf("the kernel %s has no initial RAM file system: %w", release, err)
	}
	return release, nil
}

// install copies one of the embedded trees.
func install(tree, from string, v values) error {
	return fs.WalkDir(files, from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := files.ReadFile(path)
		if err != nil {
			return err
		}
		to, isTemplate := strings.CutSuffix(strings.TrimPrefix(path, from+"/"), ".tmpl")
		if isTemplate {
			t, err := template.New(to).Option("missingkey=error").Parse(string(text))
			if err != nil {
				return err
			}
			var filled strings.Builder
			if err := t.Execute(&filled, v); err != nil {
				return err
			}
			text = []byte(filled.String())
		}
		return write(filepath.Join(tree, to), text, 0o644)
	})
}

// write writes a file and the directories that it lies in. It replaces a symbolic link instead of
// following it out of the tree.
func write(path string, data []byte, mode os.FileMode) error {
	directory := os.FileMode(0o755)
	if mode&0o077 == 0 {
		directory = 0o700
	}
	if err := makeDir(filepath.Dir(path), directory); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(path, data, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode) // whatever the umask is
}

// makeDir makes a directory and those that it lies in, where they are missing, with the same mode
// whatever the umask is. Those that packages have brought keep theirs.
func makeDir(path string, mode os.FileMode) error {
	err := os.Mkdir(path, mode)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeDir(filepath.Dir(path), mode); err != nil {
			return err
		}
		err = os.Mkdir(path, mode)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

func copyFile(to, from string, mode os.FileMode) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	if err := makeDir(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close(), os.Chmod(to, mode))
}

// clampTimes gives every file of the tree a time of at most the timestamp.
func (b *builder) clampTimes(_ context.Context, tree string) error {
	return filepath.WalkDir(tree, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		at := info.ModTime()
		if at.After(b.Timestamp) {
			at = b.Timestamp
		}
		spec := unix.NsecToTimespec(at.UnixNano())
		return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{spec, spec}, unix.AT_SYMLINK_NOFOLLOW)
	})
}
