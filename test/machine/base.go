package machine

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ironherd/ironherd/internal/image"
	"github.com/ironherd/ironherd/internal/vm"
)

const (
	// rootOffset is where the root file system of a built image lies (package image).
	rootOffset = 66 << 20
	agentFile  = "/usr/lib/ironherd/ironherd-agent"
	unitLink   = "/etc/systemd/system/multi-user.target.wants/ironherd-firstboot.service"
	// imageSize leaves little room: what is empty must be fetched, decoded and hashed as well.
	imageSize = 640 << 20
)

// Base is what the machines of all tests start from.
type Base struct {
	dir  string
	lock *os.File
	// stock is the disk of a Debian without anything of ours; key logs in as its root.
	stock, key string
	// kernel and initrd are its own. quick is the stock disk with a first process that needs no time.
	kernel, initrd, quick string
	// full is the same with the unit that says that the system is up, and with some agent.
	full string
}

// Missing says what this host lacks to run virtual machines and to build their disk, empty where
// that is nothing.
func Missing() string {
	if os.Getuid() != 0 {
		return "to be root, who alone can unpack Debian's packages"
	}
	release, _ := os.ReadFile("/etc/os-release")
	if !suits(runtime.GOARCH, string(release)) {
		return "Debian on amd64, whose suite and package sources the disks are built from"
	}
	for _, program := range []string{"qemu-system-x86_64", "qemu-img", "mmdebstrap", "nc", "zstd", "apt-config"} {
		if _, err := exec.LookPath(program); err != nil {
			return program + ": run `make setup`"
		}
	}
	return ""
}

// suits says whether disks can be built on a host of that architecture and with that
// /etc/os-release. What derives from Debian has other suites and other packages.
func suits(architecture, release string) bool {
	return architecture == "amd64" && slices.Contains(strings.Fields(release), "ID=debian")
}

// Prepare returns the base, and builds it where it is not there, which takes minutes. One process
// at a time does. It must be called from within the module, and tells the log how far it is.
func Prepare(ctx context.Context, agent string, log func(string)) (*Base, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	recipe, err := newRecipe(ctx)
	if err != nil {
		return nil, err
	}
	home := filepath.Join(cache, "ironherd", "machine")
	b := &Base{dir: filepath.Join(home, recipe.key)}
	b.stock, b.full = filepath.Join(b.dir, "stock.raw"), filepath.Join(b.dir, "full.raw")
	b.key, b.kernel, b.initrd = filepath.Join(b.dir, "key"), filepath.Join(b.dir, "vmlinuz"), filepath.Join(b.dir, "initrd.img")
	b.quick = filepath.Join(b.dir, "quick.raw")
	if err := os.MkdirAll(home, 0o700); err != nil {
		return nil, err
	}
	// The lock is held until this process ends: nobody removes what it uses.
	if b.lock, err = os.OpenFile(filepath.Join(home, "lock"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	if err := b.hold(syscall.LOCK_SH); err != nil || b.complete() {
		return b, err
	}
	if err := b.hold(syscall.LOCK_EX); err != nil {
		return nil, err
	}
	if _, err := os.Stat(b.stock); err != nil {
		log("building the disk of a stock Debian, once")
		if err := removeOthers(home, recipe.key); err != nil {
			return nil, err
		}
		if err := b.build(ctx, recipe, agent, log); err != nil {
			return nil, fmt.Errorf("build the disk of a stock Debian: %w", err)
		}
	}
	if err := b.makeQuick(ctx); err != nil {
		return nil, err
	}
	return b, b.hold(syscall.LOCK_SH)
}

// hold takes the lock in that way, in the place of the one that it has.
func (b *Base) hold(how int) error { return syscall.Flock(int(b.lock.Fd()), how) }

// complete says whether all disks are there.
func (b *Base) complete() bool {
	_, err := os.Stat(b.stock)
	return err == nil && b.hasQuick()
}

// recipe is what the disk is built from.
type recipe struct {
	key, suite, sources, apt string
	packages                 []string
}

// newRecipe uses this host's own suite and sources, because they are known to be reached.
func newRecipe(ctx context.Context) (recipe, error) {
	r := recipe{packages: []string{"dmidecode", "pciutils"}}
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return r, err
	}
	for line := range strings.SplitSeq(string(release), "\n") {
		if name, ok := strings.CutPrefix(line, "VERSION_CODENAME="); ok {
			r.suite = strings.Trim(name, `"`)
		}
	}
	for _, path := range []string{"/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"} {
		if text, err := os.ReadFile(path); err == nil && len(strings.TrimSpace(string(text))) > 0 {
			r.sources = string(text)
			break
		}
	}
	if r.suite == "" || r.sources == "" {
		return r, errors.New("this host is no Debian with package sources: run these tests on one")
	}
	dump, err := exec.CommandContext(ctx, "apt-config", "dump", "Acquire").Output()
	if err != nil {
		return r, fmt.Errorf("apt-config: %w", err)
	}
	for line := range strings.SplitSeq(string(dump), "\n") {
		if name, _, _ := strings.Cut(line, " "); slices.ContainsFunc([]string{"::Proxy", "::Check-", "::Retries", "::CaInfo", "::Verify-"},
			func(part string) bool { return strings.Contains(name, part) }) {
			r.apt += line + "\n"
		}
	}
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "4 %s %q %q %q %d\n", r.suite, r.sources, r.apt, r.packages, imageSize)
	module, err := output(ctx, "go", "env", "GOMOD")
	if err != nil {
		return r, fmt.Errorf("find the repository: %w", err)
	}
	source := os.DirFS(filepath.Dir(strings.TrimSpace(module)))
	err = fs.WalkDir(source, "internal/image", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := fs.ReadFile(source, path)
		_, _ = fmt.Fprintf(sum, "%s %d\n", path, len(data))
		_, _ = sum.Write(data)
		return err
	})
	r.key = hex.EncodeToString(sum.Sum(nil))[:16]
	return r, err
}

// write makes files of the package sources and of apt's configuration.
func (r recipe) write(dir string) (sources, apt string, err error) {
	sources, apt = filepath.Join(dir, "sources"), filepath.Join(dir, "apt.conf")
	if strings.HasPrefix(strings.TrimSpace(r.sources), "Types:") {
		sources += ".sources"
	}
	return sources, apt, errors.Join(os.WriteFile(sources, []byte(r.sources), 0o600), os.WriteFile(apt, []byte(r.apt), 0o600))
}

// removeOthers removes what other recipes have left.
func removeOthers(home, key string) error {
	entries, err := os.ReadDir(home)
	for _, entry := range entries {
		if entry.IsDir() && entry.Name() != key {
			err = errors.Join(err, os.RemoveAll(filepath.Join(home, entry.Name())))
		}
	}
	return err
}

// build makes the files. The one that prepare looks for comes last.
func (b *Base) build(ctx context.Context, r recipe, agent string, log func(string)) error {
	if err := errors.Join(os.RemoveAll(b.dir), os.MkdirAll(b.dir, 0o700)); err != nil {
		return err
	}
	sources, apt, err := r.write(b.dir)
	if err != nil {
		return err
	}
	if _, err := output(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", b.key); err != nil {
		return err
	}
	public, err := os.ReadFile(b.key + ".pub")
	if err != nil {
		return err
	}
	_, err = image.Build(ctx, image.Options{
		Output: b.full, Suite: r.suite, Packages: r.packages, AuthorizedKeys: public, Sources: sources, AptConfig: apt, Agent: agent, Log: log,
		Size: imageSize,
	})
	if err != nil {
		return err
	}
	partial := b.stock + ".new"
	if err := copySparse(ctx, b.full, partial); err != nil {
		return err
	}
	if err := edit(ctx, partial, "rm "+unitLink, "rm "+agentFile); err != nil {
		return err
	}
	if err := b.addHostKeys(ctx, partial); err != nil {
		return err
	}
	return os.Rename(partial, b.stock)
}

// addHostKeys gives a disk the SSH host keys that a system has after its first boot. An emulated
// processor would take long to make them.
func (b *Base) addHostKeys(ctx context.Context, disk string) error {
	commands := []string{"cd /etc/ssh"}
	for _, kind := range []string{"rsa", "ecdsa", "ed25519"} {
		name := "ssh_host_" + kind + "_key"
		path := filepath.Join(b.dir, name)
		if _, err := output(ctx, "ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "", "-f", path); err != nil {
			return err
		}
		commands = append(commands, "write "+path+" "+name, "sif "+name+" mode 0100600", "write "+path+".pub "+name+".pub")
	}
	return edit(ctx, disk, commands...)
}

// quickInit is the first process of a quick machine, quickPath where it lies.
//
//go:embed quick-init
var quickInit []byte

const quickPath = "/usr/sbin/quick-init"

// quickScript is a copy of the first process that the quick disk has; it is written last.
func (b *Base) quickScript() string { return filepath.Join(b.dir, "quick-init") }

func (b *Base) hasQuick() bool {
	text, err := os.ReadFile(b.quickScript())
	return err == nil && bytes.Equal(text, quickInit)
}

// makeQuick makes the disk of quick machines, and copies the kernel that they are booted with out
// of it.
func (b *Base) makeQuick(ctx context.Context) error {
	if b.hasQuick() {
		return nil
	}
	script := b.quickScript()
	if err := copySparse(ctx, b.stock, b.quick); err != nil {
		return err
	}
	partial := script + ".new"
	if err := os.WriteFile(partial, quickInit, 0o600); err != nil {
		return err
	}
	name := filepath.Base(quickPath)
	if err := edit(ctx, b.quick, "cd "+filepath.Dir(quickPath), "write "+partial+" "+name, "sif "+name+" mode 0100755"); err != nil {
		return err
	}
	list, err := output(ctx, "debugfs", "-R", "ls -p /boot", fmt.Sprintf("%s?offset=%d", b.quick, rootOffset))
	if err != nil {
		return err
	}
	for line := range strings.SplitSeq(list, "\n") {
		fields := strings.Split(line, "/") // /inode/mode/uid/gid/name/size/
		for prefix, to := range map[string]string{"vmlinuz-": b.kernel, "initrd.img-": b.initrd} {
			if len(fields) > 5 && strings.HasPrefix(fields[5], prefix) {
				if err := edit(ctx, b.quick, "dump /boot/"+fields[5]+" "+to); err != nil {
					return err
				}
			}
		}
	}
	for _, path := range []string{b.kernel, b.initrd} {
		if info, err := os.Stat(path); err != nil || info.Size() == 0 {
			return fmt.Errorf("the disk has no kernel in /boot: %w", err)
		}
	}
	return os.Rename(partial, script)
}

// kvm says whether hardware virtualization works here. It is tried once for each boot of this host.
func (b *Base) kvm(ctx context.Context) bool {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return false
	}
	remembered := filepath.Join(filepath.Dir(b.dir), "kvm")
	if text, err := os.ReadFile(remembered); err == nil && strings.HasPrefix(string(text), string(boot)) {
		return strings.HasSuffix(string(text), "works")
	}
	verdict, works := "fails", vm.KVM(ctx, b.kernel, 20*time.Second)
	if works {
		verdict = "works"
	}
	_ = os.WriteFile(remembered, append(boot, verdict...), 0o600)
	return works
}

// withAgent makes a disk image whose system says by that agent that it is up.
func (b *Base) withAgent(ctx context.Context, agent, to string) error {
	if err := copySparse(ctx, b.full, to); err != nil {
		return err
	}
	info, err := os.Stat(agent)
	if err != nil {
		return err
	}
	name := filepath.Base(agentFile)
	if err := edit(ctx, to, "cd "+filepath.Dir(agentFile), "rm "+name, "write "+agent+" "+name, "sif "+name+" mode 0100755"); err != nil {
		return err
	}
	// debugfs does not tell when it fails.
	stat, err := output(ctx, "debugfs", "-R", "stat "+agentFile, fmt.Sprintf("%s?offset=%d", to, rootOffset))
	if err != nil || !strings.Contains(stat, "Mode:  0755") || !strings.Contains(stat, fmt.Sprintf("Size: %d", info.Size())) {
		return fmt.Errorf("the agent is not in the image: %w: %s", err, stat)
	}
	return nil
}

// edit changes the root file system of an image, without mounting it.
func edit(ctx context.Context, disk string, commands ...string) error {
	command := exec.CommandContext(ctx, "/usr/sbin/debugfs", "-w", "-f", "-", fmt.Sprintf("%s?offset=%d", disk, rootOffset))
	command.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("debugfs: %w: %s", err, out)
	}
	return nil
}

func copySparse(ctx context.Context, from, to string) error {
	_, err := output(ctx, "cp", "--sparse=always", "--reflink=auto", from, to)
	return err
}

// output runs a program and returns what it prints.
func output(ctx context.Context, program string, args ...string) (string, error) {
	path := program
	if _, err := exec.LookPath(program); err != nil {
		path = "/usr/sbin/" + program
	}
	command := exec.CommandContext(ctx, path, args...)
	var complaints strings.Builder
	command.Stderr = &complaints
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, complaints.String())
	}
	return string(out), nil
}

// digest returns the SHA-256 of a file.
func digest(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}
