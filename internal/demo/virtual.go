package demo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider/builtin"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/vm"
)

const (
	// maximumVirtual bounds how many virtual machines a demo has: each takes a gigabyte of memory.
	maximumVirtual = 16
	// virtualDisk is the size of their disks: larger than the image.
	virtualDisk = 3 << 30
	// patience is how long anything of a machine may take whose processor is emulated.
	patience = 40 * time.Minute
)

// virtual are machines under QEMU. Each starts from a stock Debian with OpenSSH, and is to get the
// same Debian as an image.
type virtual struct {
	base     base
	dir      string
	machines []*vm.Machine
	// port is where the agent API is to listen, and images where the image is served.
	port, images int
	image        config.Install
	server       *http.Server
}

// base is the disk that `make vm-disk` has built, with what goes with it.
type base struct {
	stock, full, key, hostKey, kernel string
	// lock keeps others from removing it.
	lock *os.File
}

// findBase returns the disk that is in the user's cache directory. The error, of kind NotFound,
// says how to make it.
func findBase() (base, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return base{}, fleet.Errorf(fleet.KindInvalid, "the disk of the virtual machines cannot be looked for: %w", err)
	}
	home := filepath.Join(cache, "ironherd", "machine")
	missing := fleet.Errorf(fleet.KindNotFound, "the disk of the virtual machines is not in %s: run `make vm-disk` in the repository, and the demo, both as root", home)
	lock, err := os.Open(filepath.Join(home, "lock"))
	if err != nil {
		return base{}, missing
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return base{}, fleet.Errorf(fleet.KindInUse, "the disk of the virtual machines is being built: wait for `make vm-disk`")
	}
	dirs, _ := filepath.Glob(filepath.Join(home, "*", "stock.raw")) // a fixed pattern
	if len(dirs) != 1 {
		_ = lock.Close()
		return base{}, missing
	}
	dir := filepath.Dir(dirs[0])
	b := base{
		stock: dirs[0], full: filepath.Join(dir, "full.raw"), key: filepath.Join(dir, "key"), kernel: filepath.Join(dir, "vmlinuz"), lock: lock,
	}
	hostKey, err := os.ReadFile(filepath.Join(dir, "ssh_host_ed25519_key.pub"))
	if err != nil {
		_ = lock.Close()
		return base{}, missing
	}
	b.hostKey = strings.TrimSpace(string(hostKey))
	return b, nil
}

// openVirtual starts the machines, and serves their image. The caller closes it also after an
// error.
func openVirtual(ctx context.Context, n int, dir string) (*virtual, error) {
	v := &virtual{dir: dir}
	if _, err := exec.LookPath("qemu-img"); err != nil {
		return v, fleet.Errorf(fleet.KindNotFound, "QEMU is not installed: run `make setup` in the repository (Debian: apt-get install qemu-system-x86 qemu-utils)")
	}
	var err error
	if v.base, err = findBase(); err != nil {
		return v, err
	}
	if v.port, err = vm.FreePort(ctx); err != nil {
		return v, err
	}
	if err := v.serveImage(ctx); err != nil {
		return v, fmt.Errorf("serve the image: %w", err)
	}
	kvm := vm.KVM(ctx, v.base.kernel, 10*time.Second)
	for i := range n {
		m, err := v.start(ctx, i+1, kvm)
		if err != nil {
			return v, fmt.Errorf("start a virtual machine: %w", err)
		}
		v.machines = append(v.machines, m)
	}
	return v, nil
}

// start starts one machine, with a disk that begins as the stock Debian.
func (v *virtual) start(ctx context.Context, n int, kvm bool) (*vm.Machine, error) {
	name := fmt.Sprintf("vm-%d", n)
	dir := filepath.Join(v.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	disk := filepath.Join(dir, "disk.qcow2")
	made := exec.CommandContext(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", v.base.stock, disk, fmt.Sprint(int64(virtualDisk)))
	if said, err := made.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("qemu-img: %w: %s", err, strings.TrimSpace(string(said)))
	}
	return vm.Start(ctx, vm.Config{
		Name: name, Dir: dir, Firmware: vm.BIOS, CPUs: 2, KVM: kvm,
		Disks:    []vm.Disk{{Path: disk, Format: "qcow2", Serial: "disk-" + name}},
		Networks: []vm.Network{{MAC: fmt.Sprintf("52:54:00:12:34:%02x", n), Forward: []int{22}, Reach: []int{v.port, v.images}}},
		System:   vm.System{Vendor: "Ironherd", Product: "Virtual machine", Serial: fmt.Sprintf("SN-%04d", n)},
	})
}

// serveImage compresses the image, and serves it on loopback, where the machines reach it.
func (v *virtual) serveImage(ctx context.Context) error {
	path := filepath.Join(v.dir, "debian.raw.zst")
	digest, size, err := compress(v.base.full, path)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address, _ := listener.Addr().(*net.TCPAddr)
	v.images = address.Port
	v.server = &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) }),
		ReadHeaderTimeout: 10 * time.Second,
	}
	go func() { _ = v.server.Serve(listener) }() // until Close
	v.image = config.Install{
		URL:    fmt.Sprintf("http://%s/%s", net.JoinHostPort(vm.GatewayAddress, fmt.Sprint(v.images)), filepath.Base(path)),
		Digest: "sha256:" + digest, Size: size, Compression: fleet.CompressionZstd,
		RootDisk: fleet.DiskSelector{Pick: fleet.PickSmallest, Erase: true, Grow: true},
	}
	return nil
}

// compress writes a file compressed, and returns the digest and the size of what it has compressed.
func compress(from, to string) (digest string, size int64, err error) {
	source, err := os.Open(from)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = source.Close() }()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", 0, err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	encoder, err := zstd.NewWriter(target, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return "", 0, err
	}
	sum := sha256.New()
	if size, err = io.Copy(io.MultiWriter(encoder, sum), source); err != nil {
		return "", 0, err
	}
	return hex.EncodeToString(sum.Sum(nil)), size, encoder.Close()
}

// settings returns the configuration of a control plane for the machines, with deadlines that fit
// emulated processors.
func (v *virtual) settings(dir, agentExecutable string) (config.Config, error) {
	var hosts strings.Builder
	hosts.WriteString("hosts:\n")
	for i, m := range v.machines {
		fmt.Fprintf(&hosts, "  - id: vm-%d\n    hostname: vm-%d\n    address: 127.0.0.1\n    port: %d\n    host_key: %s\n", i+1, i+1, m.Port(22), v.base.hostKey)
	}
	list := filepath.Join(v.dir, "hosts.yaml")
	if err := os.WriteFile(list, []byte(hosts.String()), 0o600); err != nil {
		return config.Config{}, fmt.Errorf("write the list of hosts: %w", err)
	}
	c := config.Default()
	c.Dir = dir
	c.AgentAPI.Listen = fmt.Sprintf("127.0.0.1:%d", v.port)
	c.AgentAPI.Endpoint = net.JoinHostPort(vm.GatewayAddress, fmt.Sprint(v.port))
	c.SSH.KeyFile = v.base.key
	c.Initializer.AgentExecutable = agentExecutable
	c.Initializer.StepTimeout, c.Initializer.WorkTimeout, c.Initializer.ContactLimit = time.Minute, 10*time.Minute, 10*time.Minute
	c.Initializer.StartBackoff = fleet.Backoff{Initial: 2 * time.Second}
	c.Policy.HeartbeatInterval = 2 * time.Second
	c.Policy.NeverSpokeAfter, c.Policy.SilentAfter, c.Policy.InstallTimeout, c.Policy.BootTimeout = patience, patience, patience, patience
	c.Session.Lease = 2 * time.Minute // emulated processors leave little time for others
	c.Loops.Initializer.Grace = time.Second
	p := config.NewProvider("rack", builtin.Static)
	p.Static.Path, p.Takeover = list, initializer.TakeoverKexec
	p.Provisioner.CreateRate = fleet.Rate{Every: 100 * time.Millisecond, Burst: 1}
	p.Install = &v.image
	c.Providers = []config.Provider{p}
	c.Resolve(dir)
	return c, nil
}

// consoles are the files that the serial consoles are written to.
func (v *virtual) consoles() []string {
	paths := make([]string, len(v.machines))
	for i, m := range v.machines {
		paths[i] = m.ConsolePath()
	}
	return paths
}

// run returns when a machine has ended by itself, or ctx has ended.
func (v *virtual) run(ctx context.Context) error {
	ended := make(chan string, len(v.machines))
	for i, m := range v.machines {
		go func() {
			select {
			case <-m.Ended():
				ended <- fmt.Sprintf("vm-%d", i+1)
			case <-ctx.Done():
			}
		}()
	}
	select {
	case name := <-ended:
		return fmt.Errorf("virtual machine %s has ended by itself", name)
	case <-ctx.Done():
		return nil
	}
}

// close switches the machines off, and serves nothing any more.
func (v *virtual) close() error {
	for _, m := range v.machines {
		m.Kill()
	}
	var errs []error
	if v.server != nil {
		errs = append(errs, v.server.Close())
	}
	if v.base.lock != nil {
		errs = append(errs, v.base.lock.Close())
	}
	return errors.Join(errs...)
}
