package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider/builtin"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/vm"
	"github.com/ironherd/ironherd/test/process"
)

const (
	mebibyte = 1 << 20
	// diskSize is that of the machines' disks: larger than the image.
	diskSize = 3 << 30
)

// built are the programs and the disks that all tests share.
var built = struct {
	dir, ironherd, agent string
	base                 *Base
	kvm                  bool
	// preparation is how long it took until the first test could begin. The deadline of the tests
	// does not count it, and the one by which they are ended does.
	preparation time.Duration
}{}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	began := time.Now()
	if missing := Missing(); missing != "" {
		fmt.Fprintf(os.Stderr, "test/machine: no virtual machine is tested: that needs %s\n", missing)
		if os.Getenv("CI") == "" && os.Getenv("IRONHERD_TEST_VM") == "" {
			return 0
		}
		return 1
	}
	dir, err := os.MkdirTemp("", "ironherd-machine-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	built.dir = dir
	removeLeftovers("/dev/shm", os.TempDir())
	ctx := context.Background()
	if built.ironherd, err = process.Build(ctx, dir); err == nil {
		built.agent = filepath.Join(dir, config.AgentName)
		built.base, err = Prepare(ctx, built.agent, func(line string) { fmt.Fprintln(os.Stderr, line) })
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	built.kvm = built.base.kvm(ctx)
	built.preparation = time.Since(began)
	return m.Run()
}

// onDemand skips a test that an ordinary run has no time for.
func onDemand(t *testing.T) {
	t.Helper()
	if os.Getenv("IRONHERD_TEST_VM") == "" {
		t.Skip("`make test-vm` runs this one")
	}
}

// bounded returns a context that ends with the test, or after the time, or so long before the
// deadline of all tests that a failure can still be told.
func bounded(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	if deadline, ok := t.Deadline(); ok {
		d = min(d, time.Until(deadline)-built.preparation-time.Minute)
	}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// shortDir is a directory whose path leaves room for the name of a Unix socket in it. It is in
// memory where there is enough: a machine's disk is gigabytes that nobody keeps, and a host that
// writes them out has everything else wait for it.
func shortDir(t *testing.T) string {
	t.Helper()
	const memory, enough = "/dev/shm", 6 << 30
	parent := ""
	var stat syscall.Statfs_t
	if syscall.Statfs(memory, &stat) == nil && stat.Bavail*uint64(stat.Bsize) > enough {
		parent = memory
	}
	dir, err := os.MkdirTemp(parent, fmt.Sprintf("ih-%d-", os.Getpid())) //nolint:usetesting // whose paths are long
	check(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// removeLeftovers removes the directories that shortDir has made for tests that were killed: their
// process is no more. Those in memory would take it until the next start of this host.
func removeLeftovers(parents ...string) {
	for _, parent := range parents {
		found, _ := filepath.Glob(filepath.Join(parent, "ih-*-*"))
		for _, path := range found {
			text, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), "ih-"), "-")
			if pid, err := strconv.Atoi(text); err == nil && pid > 0 && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
				_ = os.RemoveAll(path)
			}
		}
	}
}

func TestLeftoversAreRemoved(t *testing.T) {
	t.Parallel()
	ended := exec.CommandContext(t.Context(), "true")
	check(t, ended.Run())
	dir := t.TempDir()
	for name, stays := range map[string]bool{
		fmt.Sprintf("ih-%d-123", ended.Process.Pid): false,
		fmt.Sprintf("ih-%d-123", os.Getpid()):       true,
		"ih-of-somebody":                            true,
	} {
		path := filepath.Join(dir, name)
		check(t, os.Mkdir(path, 0o700))
		removeLeftovers(dir)
		if _, err := os.Stat(path); stays != (err == nil) {
			t.Errorf("%s stays: %v", name, err == nil)
		}
	}
}

// freePort is a port of loopback that stays free until a machine or a control plane takes it.
func freePort(t *testing.T) int {
	t.Helper()
	address, err := process.FreeAddress(t.Context())
	check(t, err)
	return int(netip.MustParseAddrPort(address).Port())
}

// overlay makes a disk that begins as another one. What is written to it is in a file of its
// own.
func overlay(t *testing.T, dir, begin string) string {
	t.Helper()
	path := filepath.Join(dir, "disk.qcow2")
	_, err := output(t.Context(), "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", begin, path, fmt.Sprint(int64(diskSize)))
	check(t, err)
	return path
}

// boot starts a machine. Its console is shown when the test fails.
func boot(t *testing.T, c vm.Config) *vm.Machine {
	t.Helper()
	if c.Memory == 0 {
		c.Memory = 1024
	}
	c.KVM = built.kvm
	m, err := vm.Start(t.Context(), c)
	check(t, err)
	t.Cleanup(func() {
		m.Kill()
		if t.Failed() {
			text := strings.ReplaceAll(m.Console(), "\x1b", "^")
			t.Logf("console of %s:\n%s", c.Name, text[max(0, len(text)-12000):])
		}
	})
	return m
}

// stock is the machine that most tests begin with.
func stock(t *testing.T, firmware vm.Firmware, reach ...int) vm.Config {
	t.Helper()
	dir := shortDir(t)
	return vm.Config{
		Name: t.Name(), Dir: dir, Firmware: firmware, CPUs: 2,
		Disks:    []vm.Disk{{Path: overlay(t, dir, built.base.stock), Format: "qcow2", Serial: "only-disk"}},
		Networks: []vm.Network{{MAC: "52:54:00:12:34:56", Forward: []int{22}, Reach: reach}},
		System:   vm.System{Vendor: "Ironherd", Product: "Test machine", Serial: "SN-0001", UUID: "11111111-2222-4333-8444-555555555555"},
	}
}

// quick is a machine with the stock disk and its own kernel, booted without a boot loader and
// without systemd. The words are further ones for the kernel's command line.
func quick(t *testing.T, firmware vm.Firmware, words string, reach ...int) vm.Config {
	t.Helper()
	c := stock(t, firmware, reach...)
	c.Disks[0].Path = overlay(t, c.Dir, built.base.quick)
	c.Kernel = &vm.Kernel{
		Image: built.base.kernel, Initrd: built.base.initrd,
		CommandLine: "root=/dev/vda3 console=ttyS0 panic=5 init=" + quickPath + " " + words,
	}
	return c
}

// awaitSSH returns when the machine's SSH server answers. Whoever calls before it is there waits
// long: QEMU takes every connection, and tells the caller only later that nobody listens in the
// guest.
func awaitSSH(t *testing.T, ctx context.Context, m *vm.Machine) {
	t.Helper()
	await(t, ctx, "an answer of the SSH server", func() error {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", m.Port(22)))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
			return err
		}
		_, err = conn.Read(make([]byte, 1))
		return err
	})
}

// login connects to the machine by SSH as soon as it lets one in.
func login(t *testing.T, ctx context.Context, m *vm.Machine) *remote.Host {
	t.Helper()
	key, err := remote.OpenKey(built.base.key)
	check(t, err)
	dialer := remote.NewDialer(key, remote.Options{ConnectTimeout: 5 * time.Second, HandshakeTimeout: 30 * time.Second, StepTimeout: time.Minute})
	target := remote.Target{
		Address: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(m.Port(22))), User: "root", Trust: remote.Trust{FirstUse: true},
	}
	awaitSSH(t, ctx, m)
	var host *remote.Host
	await(t, ctx, "a login", func() (err error) {
		host, err = dialer.Dial(ctx, target)
		return err
	})
	t.Cleanup(func() { _ = host.Close() })
	return host
}

// shell runs a command on the machine and returns what it prints.
func shell(t *testing.T, ctx context.Context, host *remote.Host, command string) string {
	t.Helper()
	out, err := host.Run(ctx, remote.Command{Args: []string{"sh", "-c", command}, Timeout: time.Minute})
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return string(out)
}

// await repeats until there is no error.
func await(t *testing.T, ctx context.Context, what string, is func() error) {
	t.Helper()
	ticker := time.NewTicker(250 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := is()
		if err == nil {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("%s: not in time: %v", what, err)
		}
	}
}

// plane is a control plane for one machine on loopback.
type plane struct {
	port    int
	client  fleetv1connect.FleetServiceClient
	process *process.Process
}

// manage starts a control plane that takes the machine over in that way.
func manage(t *testing.T, way initializer.Takeover, port int, m *vm.Machine, change func(*config.Config, *config.Provider)) *plane {
	t.Helper()
	awaitSSH(t, bounded(t, limit), m)
	return manageBehind(t, way, port, m.Port(22), vm.GatewayAddress, change)
}

// manageBehind is manage for a machine whose SSH server is reached at that port of loopback, and
// which reaches the control plane at the address.
func manageBehind(t *testing.T, way initializer.Takeover, port, ssh int, address string, change func(*config.Config, *config.Provider)) *plane {
	t.Helper()
	dir := shortDir(t)
	list := filepath.Join(dir, "hosts.yaml")
	check(t, os.WriteFile(list, []byte("hosts:\n  - id: here\n    address: 127.0.0.1\n"), 0o600))
	c := config.Default()
	c.Dir = filepath.Join(dir, "herd")
	c.AgentAPI.Listen, c.AgentAPI.Endpoint = fmt.Sprintf("127.0.0.1:%d", port), net.JoinHostPort(address, fmt.Sprint(port))
	c.OperatorAPI.Listen = ""
	c.SSH.KeyFile = built.base.key
	c.Initializer.AgentExecutable = built.agent
	c.Initializer.Port = uint16(ssh)
	c.Initializer.StepTimeout, c.Initializer.ContactLimit = time.Minute, 5*time.Minute
	c.Initializer.StartBackoff = fleet.Backoff{Initial: time.Second}
	c.Policy.HeartbeatInterval = time.Second
	c.Session.Lease = 2 * time.Minute // this host emulates processors besides
	c.Loops.Initializer.Grace = time.Second
	p := config.NewProvider("rack", builtin.Static)
	p.Static.Path, p.TrustFirstUse, p.Takeover = list, true, way
	p.Provisioner.CreateRate = fleet.Rate{Every: 100 * time.Millisecond, Burst: 1}
	if change != nil {
		change(&c, &p)
	}
	c.Providers = []config.Provider{p}
	c.Resolve(dir)
	text, err := config.Encode(c, "")
	check(t, err)
	file := filepath.Join(dir, "ironherd.yaml")
	check(t, os.WriteFile(file, text, 0o600))
	started, err := process.Start(t.Context(), built.ironherd, "serve", "--config", file, "--log-level", "info")
	check(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := started.Stop(ctx); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the control plane said:\n%s", started.Stderr())
		}
	})
	_, err = started.Await(bounded(t, time.Minute), "ironherd test is ready")
	check(t, err)
	return &plane{port: port, client: process.NewClient(c.OperatorAPI.Socket), process: started}
}

// machine returns the one machine of the fleet.
func (p *plane) machine(ctx context.Context) (*fleetv1.GetMachineResponse, error) {
	list, err := p.client.ListMachines(ctx, &fleetv1.ListMachinesRequest{})
	if err != nil {
		return nil, err
	}
	if len(list.GetMachines()) != 1 {
		return nil, fmt.Errorf("there are %d machines", len(list.GetMachines()))
	}
	return p.client.GetMachine(ctx, &fleetv1.GetMachineRequest{Machine: list.GetMachines()[0].GetId()})
}

// offer is an image that is served to machines.
type offer struct {
	port   int
	digest string
	size   int64
	path   string
}

// url is where a machine finds it.
func (o offer) url() string {
	return fmt.Sprintf("http://%s:%d/%s", vm.GatewayAddress, o.port, filepath.Base(o.path))
}

// install asks for it.
func (o offer) install() *config.Install {
	return &config.Install{URL: o.url(), Digest: o.digest, Compression: fleet.CompressionZstd, Size: o.size, RootDisk: fleet.DiskSelector{Erase: true}}
}

// offered is made once, by the first test that needs it.
var offered = sync.OnceValues(func() (offer, error) {
	ctx := context.Background()
	dir := filepath.Join(built.dir, "images")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return offer{}, err
	}
	raw := filepath.Join(dir, "debian.raw")
	if err := built.base.withAgent(ctx, built.agent, raw); err != nil {
		return offer{}, err
	}
	o, _, err := serve(ctx, raw)
	return o, err
})

// serve compresses an image and offers it until the end is called.
func serve(ctx context.Context, raw string) (o offer, end func() error, err error) {
	o.path = raw + ".zst"
	if o.digest, err = digest(raw); err != nil {
		return offer{}, nil, err
	}
	info, err := os.Stat(raw)
	if err != nil {
		return offer{}, nil, err
	}
	o.size = info.Size()
	if _, err := output(ctx, "zstd", "-q", "-1", "-T2", "--rm", raw); err != nil {
		return offer{}, nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return offer{}, nil, err
	}
	o.port = listener.Addr().(*net.TCPAddr).Port
	server := &http.Server{Handler: http.FileServer(http.Dir(filepath.Dir(raw))), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	return o, server.Close, nil
}
