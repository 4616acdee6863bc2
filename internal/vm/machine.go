package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Firmware is what starts a machine.
type Firmware string

// The firmwares.
const (
	BIOS Firmware = "bios"
	UEFI Firmware = "uefi"
)

// Config is what a machine is made of.
type Config struct {
	// Name is shown to people.
	Name string
	// Dir has the machine's own files: console, sockets, the firmware's variables. It must be short
	// enough for the path of a Unix socket.
	Dir      string
	Firmware Firmware
	// SecureBoot has UEFI start only what Microsoft's keys have signed, as Debian's shim is.
	SecureBoot bool
	// Memory in MiB and number of processors. Zero: 1024, and 1.
	Memory, CPUs int
	Disks        []Disk
	// Networks are the interfaces.
	Networks []Network
	// RootPorts puts network interfaces and disks behind PCIe root ports, as real machines have them.
	RootPorts bool
	// Kernel boots without a disk, where it is set.
	Kernel *Kernel
	// System is what the firmware says of the machine.
	System System
	// StopAtReset stops the machine where it would restart, or where its BIOS finds nothing to boot.
	StopAtReset bool
	// KVM uses hardware virtualization, which must work (see the function KVM).
	KVM bool
	// Watchdog adds a hardware watchdog that resets the machine.
	Watchdog bool
	// Clock is what the hardware clock says when the machine starts. Zero: the time.
	Clock time.Time
	// BMC is the port of loopback at which a program plays the machine's BMC, and speaks OpenIPMI's
	// protocol for virtual machines. Zero: the machine has none.
	BMC int
}

// Disk is a disk of a machine.
type Disk struct {
	Path string
	// Format is raw or qcow2. Empty: raw.
	Format string
	// Bus is virtio, scsi, sata or nvme. Empty: virtio.
	Bus    string
	Serial string
	// WWN is for scsi and sata: 0x and 16 digits.
	WWN string
}

// Network is a network interface.
type Network struct {
	MAC string
	// Speed in Mbit/s is told to the guest, with full duplex, as LACP needs it. Zero: nothing is told.
	Speed int
	// Address is the guest's, where it does not take the one that DHCP gives it.
	Address string
	// Forward maps ports of the guest to free ports of the host's loopback, which Machine.Port tells.
	Forward []int
	// ForwardFrom are the ports of the host for those of Forward, in the same order, where they must
	// be certain ones. Zero, or none: a free one.
	ForwardFrom []int
	// Reach are ports of the host's loopback that the guest reaches at GatewayAddress.
	Reach []int
	// Switch is a Unix socket that connects this interface to that of another machine, instead of to
	// the host. The machine that is started first has SwitchListen set.
	Switch       string
	SwitchListen bool
	// Open lets the guest reach everything that the host does, also by IPv6. Only for what cannot be
	// had otherwise.
	Open bool
	// NoIPv4 leaves only IPv6.
	NoIPv4 bool
}

// GatewayAddress is where a guest reaches the ports of the host that its Network names.
const GatewayAddress = "10.0.2.100"

// Kernel is booted without a boot loader.
type Kernel struct {
	Image, Initrd, CommandLine string
}

// System is what SMBIOS says.
type System struct {
	Vendor, Product, Serial, UUID string
}

// Machine is a virtual machine that was started.
type Machine struct {
	config  Config
	command *exec.Cmd
	output  *bytes.Buffer
	ports   map[int]int
	// rootPorts counts those that arguments has made.
	rootPorts int
	monitor   *monitor
	ended     chan struct{}
	err       error
}

// Start starts a machine. It returns when QEMU runs, which is before the guest does anything. The
// machine ends with this process, and when Kill is called, but not with ctx.
func Start(ctx context.Context, config Config) (*Machine, error) {
	program, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return nil, errors.New("QEMU is not installed: run `make setup` (Debian: apt-get install qemu-system-x86)")
	}
	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return nil, err
	}
	m := &Machine{config: config, ports: map[int]int{}, output: new(bytes.Buffer), ended: make(chan struct{})}
	args, err := m.arguments(ctx)
	if err != nil {
		return nil, fmt.Errorf("machine %s: %w", config.Name, err)
	}
	m.command = exec.CommandContext(context.WithoutCancel(ctx), program, args...)
	m.command.Stdout, m.command.Stderr = m.output, m.output
	// It has a session of its own: an interrupt at the terminal is not for it.
	m.command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	m.command.WaitDelay = time.Second
	if err := start(m.command); err != nil {
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	go func() {
		m.err = m.command.Wait()
		close(m.ended)
	}()
	if m.monitor, err = dialMonitor(ctx, m.path("qmp"), m.ended); err != nil {
		m.Kill()
		return nil, fmt.Errorf("machine %s: %w: %s", config.Name, err, m.output)
	}
	return m, nil
}

// starters run on a thread that never ends: PR_SET_PDEATHSIG means the thread that has started the
// child, and threads of Go come and go.
var starters = sync.OnceValue(func() chan func() {
	calls := make(chan func())
	go func() {
		lockThread()
		for call := range calls {
			call()
		}
	}()
	return calls
})

func start(command *exec.Cmd) error {
	started := make(chan error)
	starters() <- func() { started <- command.Start() }
	return <-started
}

// path returns the path of one of the machine's own files.
func (m *Machine) path(name string) string { return filepath.Join(m.config.Dir, name) }

// ConsolePath returns the file that the serial console is written to.
func (m *Machine) ConsolePath() string { return m.path("console.log") }

// Port returns the port of the host's loopback that leads to a forwarded port of the guest.
func (m *Machine) Port(guest int) int { return m.ports[guest] }

// Console returns what was written to the serial console so far.
func (m *Machine) Console() string {
	data, err := os.ReadFile(m.ConsolePath())
	if err != nil {
		return ""
	}
	return string(data)
}

// AwaitConsole waits until the text is on the console behind the first skip bytes, and returns
// where it ends.
func (m *Machine) AwaitConsole(ctx context.Context, text string, skip int) (int, error) {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		data, err := os.ReadFile(m.ConsolePath())
		if err == nil && len(data) > skip {
			if at := bytes.Index(data[skip:], []byte(text)); at >= 0 {
				return skip + at + len(text), nil
			}
		}
		select {
		case <-ticker.C:
		case <-m.ended:
			return 0, fmt.Errorf("machine %s ended before its console said %q: %w", m.config.Name, text, m.err)
		case <-ctx.Done():
			return 0, fmt.Errorf("the console of machine %s has not said %q: %w", m.config.Name, text, context.Cause(ctx))
		}
	}
}

// ProcessorTime is how much processor time of the host the machine has used. Unlike the time on the
// wall it says what the machine costs on a host that has other work, too. It is zero when QEMU has
// ended.
func (m *Machine) ProcessorTime() time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.command.Process.Pid))
	_, rest, _ := strings.Cut(string(stat), ") ") // the name before it may hold anything
	fields := strings.Fields(rest)
	if err != nil || len(fields) < 13 {
		return 0
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every architecture that QEMU is run on here
	user, userErr := strconv.ParseInt(fields[11], 10, 64)
	system, systemErr := strconv.ParseInt(fields[12], 10, 64)
	if userErr != nil || systemErr != nil {
		return 0
	}
	return time.Duration(user+system) * tick
}

// Ended is closed when QEMU has ended.
func (m *Machine) Ended() <-chan struct{} { return m.ended }

// Wait waits until QEMU has ended by itself: the guest has powered off, or would have restarted and
// was to stop there.
func (m *Machine) Wait(ctx context.Context) error {
	select {
	case <-m.ended:
		if m.err != nil {
			return fmt.Errorf("QEMU: %w: %s", m.err, m.output)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("machine %s has not ended: %w", m.config.Name, context.Cause(ctx))
	}
}

// Kill takes the power away: at once, whatever the guest does. It returns when QEMU is gone.
func (m *Machine) Kill() {
	_ = m.command.Process.Kill() // it may have ended already
	<-m.ended
	if m.monitor != nil {
		m.monitor.close()
	}
}

// Reset is the reset button.
func (m *Machine) Reset(ctx context.Context) error {
	return m.monitor.execute(ctx, "system_reset", nil)
}

// Pause stops the processors, and Resume lets them go on.
func (m *Machine) Pause(ctx context.Context) error { return m.monitor.execute(ctx, "stop", nil) }

// Resume lets the processors go on.
func (m *Machine) Resume(ctx context.Context) error { return m.monitor.execute(ctx, "cont", nil) }

// Link connects or disconnects the cable of an interface, counted from 0.
func (m *Machine) Link(ctx context.Context, n int, up bool) error {
	return m.monitor.execute(ctx, "set_link", map[string]any{"name": fmt.Sprintf("net%d", n), "up": up})
}

// copyFile copies a file that is not there yet.
func copyFile(from, to string) error {
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}
