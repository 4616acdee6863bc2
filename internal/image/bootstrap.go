package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// basePackages are in every image, besides essential ones, APT and the kernel.
var basePackages = []string{
	"apt-utils", "ca-certificates", "dbus", "e2fsprogs", "grub-cloud-amd64", "grub-efi-amd64-signed", "initramfs-tools", "iproute2",
	"kmod", "less", "openssh-server", "procps", "shim-signed", "systemd-resolved", "systemd-sysv", "systemd-timesyncd", "udev", "zstd",
}

// chrootScript runs on the host when all packages are installed, with the tree as its argument.
const chrootScript = `#!/bin/sh
set -eu
cp -a "$1/usr/lib/grub/i386-pc" "$1/boot/grub/"
chroot "$1" grub-mkimage --format=i386-pc --output=/boot/grub/i386-pc/core.img --prefix='(,gpt3)/boot/grub' \
	biosdisk part_gpt ext2 search_fs_uuid normal configfile linux serial terminal echo
chroot "$1" systemctl enable --quiet systemd-networkd systemd-resolved systemd-timesyncd ssh
chroot "$1" dpkg-query -W -f '${binary:Package}\t${Version}\t${Architecture}\n' >"$PACKAGES"
`

// bootstrap fills the tree with packages.
func (b *builder) bootstrap(ctx context.Context, tree string) error {
	sources, err := b.sources()
	if err != nil {
		return err
	}
	script := filepath.Join(b.work, "customize")
	text := strings.ReplaceAll(chrootScript, "$PACKAGES", b.packageList())
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil { //nolint:gosec // a program
		return err
	}
	args := []string{
		"--mode=root", "--variant=minbase", "--format=directory", "--architectures=" + Architecture,
		"--include=" + strings.Join(slices.Concat(basePackages, []string{b.Kernel}, b.Packages), ","),
		"--essential-hook=mkdir -p \"$1/boot/grub\" \"$1/boot/efi\"",
		"--customize-hook=" + script,
	}
	if b.AptConfig != "" {
		path, err := filepath.Abs(b.AptConfig)
		if err != nil {
			return err
		}
		args = append(args, "--aptopt="+path)
	}
	_, err = b.run(ctx, bytes.NewReader(sources), "mmdebstrap", append(args, b.Suite, tree, "-")...)
	return err
}

func (b *builder) packageList() string { return filepath.Join(b.work, "packages") }

// keyring has the keys that packages of Debian's own sources are verified by.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// sources are the APT sources that packages come from, and that the system will have.
func (b *builder) sources() ([]byte, error) {
	if b.Sources != "" {
		text, err := os.ReadFile(b.Sources)
		if err != nil {
			return nil, fmt.Errorf("read the APT sources: %w", err)
		}
		return text, nil
	}
	return fmt.Appendf(nil, `Types: deb
URIs: http://deb.debian.org/debian
Suites: %[1]s %[1]s-updates
Components: main
Signed-By: %[2]s

Types: deb
URIs: http://security.debian.org/debian-security
Suites: %[1]s-security
Components: main
Signed-By: %[2]s
`, b.Suite, keyring), nil
}

// readPackages reads what was installed, and derives the seed of every UUID from it and from the
// options.
func (b *builder) readPackages(context.Context, string) error {
	text, err := os.ReadFile(b.packageList())
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	slices.Sort(lines)
	for _, line := range lines {
		fields := strings.Split(line, "\t")
		if len(fields) != 3 {
			return fmt.Errorf("dpkg-query printed %q", line)
		}
		b.packages = append(b.packages, Package{Name: fields[0], Version: fields[1], Architecture: fields[2]})
	}
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "%d\n%s\n%s\n%d\n%d\n%q\n", generator, b.Suite, b.Hostname, b.Size, b.Timestamp.Unix(), b.AuthorizedKeys)
	_, _ = io.WriteString(sum, strings.Join(lines, "\n"))
	if b.Agent != "" {
		agent, err := os.Open(b.Agent)
		if err != nil {
			return fmt.Errorf("read the agent's executable: %w", err)
		}
		defer func() { _ = agent.Close() }()
		if _, err := io.Copy(sum, agent); err != nil {
			return fmt.Errorf("read the agent's executable: %w", err)
		}
	}
	b.seed = [sha256.Size]byte(sum.Sum(nil))
	return nil
}
