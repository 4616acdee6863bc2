package test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider/builtin"
	"github.com/ironherd/ironherd/test/freeport"
	"github.com/ironherd/ironherd/test/process"
)

// realHost is this host, reached through OpenSSH's own server on an address of 127/8. The server
// and everything that it starts run in a process namespace of their own, with directories of their
// own for what the agent keeps. So nothing of them stays behind.
type realHost struct {
	address string
	port    uint16
	hostKey string
	key     string // private key that it lets in
	target  string // where agents are uploaded to
	log     *process.Log
	pid     int // whose /proc has the host's files and processes
}

const hostAddress = "127.77.7.7"

// inNamespace are the arguments of unshare before a program.
var inNamespace = []string{"--mount", "--pid", "--fork", "--kill-child", "--mount-proc"}

func startHost(t *testing.T) *realHost {
	t.Helper()
	h := startHostAt(t, hostAddress, "")
	h.target = filepath.Join(homeDir(t), "agent")
	return h
}

// startHostAt starts a host at an address. It runs a script of the shell first, and has lines added
// to the configuration of its SSH server.
func startHostAt(t *testing.T, address, script string, lines ...string) *realHost {
	t.Helper()
	if _, err := os.Stat("/usr/sbin/sshd"); err != nil {
		t.Fatalf("OpenSSH's sshd is needed: run `make setup` (Debian: apt-get install openssh-server): %v", err)
	}
	if os.Getuid() != 0 && os.Getenv("CI") == "" {
		t.Skip("sshd takes logins of others only as root: run this test as root")
	}
	if out, err := exec.CommandContext(t.Context(), "unshare", append(inNamespace, "true")...).CombinedOutput(); err != nil {
		t.Fatalf("root and namespaces are needed: unshare: %v: %s", err, out)
	}
	dir := t.TempDir()
	h := &realHost{address: address, key: filepath.Join(dir, "user"), log: &process.Log{}}
	for _, name := range []string{"host", "user"} {
		output(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", filepath.Join(dir, name))
	}
	h.hostKey = strings.TrimSpace(read(t, filepath.Join(dir, "host.pub")))
	port, err := freeport.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h.port = uint16(port)
	configuration := fmt.Sprintf("ListenAddress %s:%d\nHostKey %s/host\nAuthorizedKeysFile %s/user.pub\nPidFile none\nUsePAM no\n"+
		"StrictModes no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\nLogLevel VERBOSE\n%s\n",
		h.address, h.port, dir, dir, strings.Join(append(lines, "Subsystem sftp internal-sftp"), "\n"))
	if err := os.WriteFile(filepath.Join(dir, "config"), []byte(configuration), 0o600); err != nil {
		t.Fatal(err)
	}
	script += "for d in /var/lib /var/log /run; do mount -t tmpfs none $d; done && mkdir -p /run/sshd && exec /usr/sbin/sshd -D -e -f " +
		filepath.Join(dir, "config")
	server := exec.CommandContext(t.Context(), "unshare", append(inNamespace, "sh", "-euc", script)...)
	server.Stderr = h.log
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	h.pid = server.Process.Pid
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	eventually(t, func() error {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", fmt.Sprintf("%s:%d", h.address, h.port))
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	return h
}

// homeDir returns a new directory in which, unlike in /tmp, nobody else may write.
func homeDir(t *testing.T) string {
	t.Helper()
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(home, ".ironherd-test-") //nolint:usetesting // whose are in /tmp
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// manage runs a control plane with the host on its list, under the given host key, and returns a
// client.
func (h *realHost) manage(t *testing.T, hostKey string) fleetv1connect.FleetServiceClient {
	t.Helper()
	dir := shortDir(t)
	c := listed(t, dir, h.key, fmt.Sprintf("  - id: here\n    address: %s\n    location: desk\n    host_key: %s\n", h.address, hostKey))
	c.Initializer.Port, c.Initializer.TargetPath = h.port, h.target
	file := write(t, dir, c)
	plane, err := process.Start(t.Context(), ironherd, "serve", "--config", file, "--log-level", "warn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := plane.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	if _, err := plane.Await(bounded(t, time.Minute), "ironherd test is ready"); err != nil {
		t.Fatal(err)
	}
	return process.NewClient(c.OperatorAPI.Socket)
}

// listed is the configuration of a control plane with a list of hosts, in a directory.
func listed(t *testing.T, dir, key, hosts string) config.Config {
	t.Helper()
	list := filepath.Join(dir, "hosts.yaml")
	if err := os.WriteFile(list, []byte("hosts:\n"+hosts), 0o600); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.Dir = filepath.Join(dir, "herd")
	c.AgentAPI.Endpoint = freeAddress(t)
	c.AgentAPI.Listen = c.AgentAPI.Endpoint
	c.OperatorAPI.Listen = ""
	c.SSH.KeyFile = key
	c.Initializer.AgentExecutable = filepath.Join(filepath.Dir(ironherd), config.AgentName)
	c.Policy.HeartbeatInterval = time.Second
	c.Loops.Initializer.Grace = time.Second
	p := config.NewProvider("rack", builtin.Static)
	p.Static.Path, p.Provisioner.CreateRate = list, fleet.Rate{Every: 100 * time.Millisecond, Burst: 1}
	c.Providers = []config.Provider{p}
	c.Resolve(dir)
	return c
}

// write writes a configuration, and returns the name of the file.
func write(t *testing.T, dir string, c config.Config) string {
	t.Helper()
	text, err := config.Encode(c, "")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "ironherd.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// only returns the one machine of the fleet.
func only(ctx context.Context, client fleetv1connect.FleetServiceClient) (*fleetv1.GetMachineResponse, error) {
	list, err := client.ListMachines(ctx, &fleetv1.ListMachinesRequest{})
	if err != nil {
		return nil, err
	}
	if len(list.GetMachines()) != 1 {
		return nil, fmt.Errorf("there are %d machines", len(list.GetMachines()))
	}
	return client.GetMachine(ctx, &fleetv1.GetMachineRequest{Machine: list.GetMachines()[0].GetId()})
}

func TestRealHost(t *testing.T) {
	t.Parallel()
	h := startHost(t)
	// first: nothing of the other may be taken for its own
	t.Run("wrong host key", func(t *testing.T) {
		client := h.manage(t, otherKey(t))
		eventually(t, func() error {
			m, err := only(t.Context(), client)
			if err != nil {
				return err
			}
			explained, err := client.ExplainMachine(t.Context(), &fleetv1.ExplainMachineRequest{Machine: m.GetMachine().GetId()})
			if err != nil {
				return err
			}
			for _, d := range explained.GetDecisions() {
				if d.GetProcess() == "agent-start" && strings.Contains(d.GetBackoffCause(), "host key") {
					return nil
				}
			}
			return fmt.Errorf("not refused for its host key: %v", explained)
		})
		if _, err := os.Stat(h.target); err == nil {
			t.Error("something was uploaded")
		}
		for _, sent := range []string{"Accepted", "Failed", "userauth", "authenticating user", "root"} {
			if strings.Contains(h.log.String(), sent) {
				t.Errorf("the host has heard of more than a connection (%q):\n%s", sent, h.log)
			}
		}
	})
	t.Run("managed", func(t *testing.T) {
		client := h.manage(t, h.hostKey)
		var machine *fleetv1.GetMachineResponse
		eventually(t, func() (err error) {
			machine, err = only(t.Context(), client)
			if err == nil && (machine.GetHardware() == nil || machine.GetMachine().GetState() != string(fleet.StateAvailable)) {
				err = fmt.Errorf("not there yet: %v; the host says: %s", machine, h.log)
			}
			return err
		})
		if got := machine.GetMachine().GetAddress(); got != hostAddress {
			t.Errorf("its address is %s", got)
		}
		compareCPUs(t, machine.GetHardware())
		compareDisks(t, machine.GetHardware())
		compareSystem(t, machine.GetHardware())
		compareNetwork(t, machine.GetHardware())
	})
}

func compareCPUs(t *testing.T, h *agentv1.HardwareReport) {
	t.Helper()
	var lscpu struct {
		Lscpu []struct{ Field, Data string }
	}
	decode(t, output(t, "lscpu", "-J"), &lscpu)
	says := map[string]string{}
	for _, f := range lscpu.Lscpu {
		says[strings.TrimSuffix(f.Field, ":")] = f.Data
	}
	var threads, cores int32
	for _, c := range h.GetCpus() {
		threads, cores = threads+c.GetThreads(), cores+c.GetCores()
	}
	first := h.GetCpus()[0]
	for field, got := range map[string]string{
		"CPU(s)": fmt.Sprint(threads + h.GetOfflineThreads()), "Socket(s)": fmt.Sprint(len(h.GetCpus())), "Core(s) per socket": fmt.Sprint(first.GetCores()),
		"Vendor ID": first.GetVendor(), "Model name": first.GetModel(), "CPU family": fmt.Sprint(first.GetFamily()),
		"Model": fmt.Sprint(first.GetModelNumber()), "Stepping": fmt.Sprint(first.GetStepping()),
	} {
		if want, ok := says[field]; ok && got != want {
			t.Errorf("lscpu says of %s %q, the agent %q", field, want, got)
		}
	}
	if cores == 0 {
		t.Error("the agent found no cores")
	}
}

func compareDisks(t *testing.T, h *agentv1.HardwareReport) {
	t.Helper()
	type disk struct {
		Name, Type    string
		Model, Serial *string
		Size          int64
		Rota, RO      bool
		LogSec        int32 `json:"log-sec"`
		PhySec        int32 `json:"phy-sec"`
	}
	var lsblk struct{ Blockdevices []disk }
	decode(t, output(t, "lsblk", "-J", "-b", "-d", "-o", "NAME,TYPE,MODEL,SERIAL,SIZE,ROTA,RO,LOG-SEC,PHY-SEC"), &lsblk)
	known, want, got := map[string]disk{}, map[string]string{}, map[string]string{}
	for _, d := range lsblk.Blockdevices {
		known[d.Name] = d
		if d.Type == "disk" && d.Size > 0 && !strings.HasPrefix(d.Name, "zram") && !strings.HasPrefix(d.Name, "ram") && !strings.HasPrefix(d.Name, "nbd") {
			want[d.Name] = fmt.Sprintf("%d %v %v %d %d %q %q", d.Size, d.Rota, d.RO, d.LogSec, d.PhySec, orEmpty(d.Model), orEmpty(d.Serial))
		}
	}
	for _, d := range h.GetBlockDevices() {
		// without udev lsblk cannot tell, and sysfs can
		if named := known[d.GetName()]; named.Serial == nil {
			d.Serial = ""
		}
		if named := known[d.GetName()]; named.Model == nil {
			d.Model = ""
		}
		got[d.GetName()] = fmt.Sprintf("%d %v %v %d %d %q %q", d.GetSizeBytes(), d.GetRotational(), d.GetReadOnly(),
			d.GetLogicalSectorBytes(), d.GetPhysicalSectorBytes(), d.GetModel(), d.GetSerial())
	}
	if fmt.Sprint(want) != fmt.Sprint(got) {
		t.Errorf("disks: lsblk says %v, the agent %v", want, got)
	}
}

func compareSystem(t *testing.T, h *agentv1.HardwareReport) {
	t.Helper()
	s := h.GetSystem()
	if want := output(t, "uname", "-r"); s.GetKernel() != want {
		t.Errorf("uname says %s, the agent %s", want, s.GetKernel())
	}
	var total int64
	if _, err := fmt.Sscanf(read(t, "/proc/meminfo"), "MemTotal: %d kB", &total); err != nil || h.GetMemory().GetUsableBytes() != total<<10 {
		t.Errorf("the kernel says %d kB of memory (%v), the agent %d bytes", total, err, h.GetMemory().GetUsableBytes())
	}
	_, err := os.Stat("/sys/firmware/dmi/tables/DMI")
	for keyword, got := range map[string]string{
		"system-manufacturer": s.GetVendor(), "system-product-name": s.GetProduct(), "system-serial-number": s.GetSerial(),
		"system-uuid": s.GetUuid(), "bios-vendor": s.GetFirmwareVendor(), "bios-version": s.GetFirmwareVersion(),
		"baseboard-manufacturer": s.GetBoardVendor(), "baseboard-product-name": s.GetBoardProduct(),
	} {
		want := "" // dmidecode cannot tell either
		if err == nil {
			want = output(t, "dmidecode", "-s", keyword)
		}
		if !strings.EqualFold(got, want) && (got != "" || !strings.HasPrefix(want, "Not ")) {
			t.Errorf("dmidecode says of %s %q, the agent %q", keyword, want, got)
		}
	}
	if err != nil && len(h.GetWarnings()) == 0 {
		t.Error("there is no SMBIOS here, and the agent does not say so")
	}
}

func compareNetwork(t *testing.T, h *agentv1.HardwareReport) {
	t.Helper()
	var links []struct {
		Ifname, Address string
		MTU             int32
		AddrInfo        []struct {
			Local     string
			PrefixLen int
		} `json:"addr_info"`
	}
	decode(t, output(t, "ip", "-j", "address"), &links)
	want, got := map[string]string{}, map[string]string{}
	for _, l := range links {
		if _, err := os.Stat("/sys/class/net/" + l.Ifname + "/device"); err != nil {
			continue // no hardware behind it
		}
		addresses := map[string]bool{}
		for _, a := range l.AddrInfo {
			addresses[fmt.Sprintf("%s/%d", a.Local, a.PrefixLen)] = true
		}
		want[l.Ifname] = fmt.Sprint(l.Address, l.MTU, addresses)
	}
	for _, n := range h.GetNetworkInterfaces() {
		if n.GetKind() != "" {
			continue // it stands on hardware, and is none
		}
		addresses := map[string]bool{}
		for _, a := range n.GetAddresses() {
			addresses[a] = true
		}
		got[n.GetName()] = fmt.Sprint(n.GetMac(), n.GetMtu(), addresses)
	}
	if fmt.Sprint(want) != fmt.Sprint(got) {
		t.Errorf("network: ip says %v, the agent %v", want, got)
	}
}
