package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	defaultMemory = 1024
	// guestAddress is what QEMU's own DHCP server gives to the guest.
	guestAddress = "10.0.2.15"
)

func lockThread() { runtime.LockOSThread() }

// firmwares are where Debian puts EFI for virtual machines: code, and the template of its
// variables. The variables of secureFirmwares have Microsoft's keys, and Secure Boot is on.
var (
	firmwares = [][2]string{
		{"/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"},
		{"/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd"},
	}
	secureFirmwares = [][2]string{
		{"/usr/share/OVMF/OVMF_CODE_4M.secboot.fd", "/usr/share/OVMF/OVMF_VARS_4M.ms.fd"},
		{"/usr/share/OVMF/OVMF_CODE.secboot.fd", "/usr/share/OVMF/OVMF_VARS.ms.fd"},
	}
)

// arguments returns QEMU's.
func (m *Machine) arguments(ctx context.Context) ([]string, error) {
	c := m.config
	memory, cpus := c.Memory, max(1, c.CPUs)
	if memory == 0 {
		memory = defaultMemory
	}
	// An emulated processor is the fastest when it has the fewest instructions of its own: with
	// vectors of 256 bits and page tables of five levels, hashing and decompressing take two to four
	// times as long. Kernels from 6.12 on die in QEMU 7.2's CMPXCHG16B, by which they allocate memory
	// where there is one.
	accelerator, processor := "tcg,thread=multi", "qemu64,svm=off,cx16=off"
	if c.KVM {
		accelerator, processor = "kvm", "max,svm=off,vmx=off"
	}
	clock := "utc"
	if !c.Clock.IsZero() {
		clock = c.Clock.UTC().Format("2006-01-02T15:04:05")
	}
	args := []string{
		"-name", plain(c.Name), "-nodefaults", "-no-user-config", "-display", "none", "-machine", c.board(), "-accel", accelerator, "-cpu", processor,
		"-m", fmt.Sprint(memory), "-smp", fmt.Sprint(cpus), "-rtc", "base=" + clock, "-device", "virtio-rng-pci",
		"-chardev", "file,id=console,path=" + escape(m.ConsolePath()), "-serial", "chardev:console",
		"-qmp", "unix:" + escape(m.path("qmp")) + ",server=on,wait=off",
		"-smbios", c.System.argument(),
	}
	if c.StopAtReset {
		// A BIOS that finds nothing to boot restarts, and so ends.
		args = append(args, "-no-reboot", "-boot", "strict=on,reboot-timeout=1")
	}
	if c.Watchdog {
		args = append(args, "-device", "i6300esb", "-action", "watchdog=reset")
	}
	if c.BMC != 0 {
		args = append(args, "-chardev", fmt.Sprintf("socket,id=bmc,host=127.0.0.1,port=%d,reconnect=1", c.BMC),
			"-device", "ipmi-bmc-extern,id=ipmi,chardev=bmc", "-device", "isa-ipmi-kcs,bmc=ipmi")
	}
	if k := c.Kernel; k != nil {
		args = append(args, "-kernel", k.Image, "-append", k.CommandLine)
		if k.Initrd != "" {
			args = append(args, "-initrd", k.Initrd)
		}
	}
	if c.Firmware == UEFI {
		firmware, err := m.firmware()
		if err != nil {
			return nil, err
		}
		args = append(args, firmware...)
	}
	for i, disk := range c.Disks {
		drive, err := disk.arguments(i)
		if err != nil {
			return nil, err
		}
		args = append(args, m.behindPort(drive)...)
	}
	for i, network := range c.Networks {
		card, err := m.network(ctx, i, network)
		if err != nil {
			return nil, err
		}
		args = append(args, m.behindPort(card)...)
	}
	return args, nil
}

// behindPort puts the device that the arguments end with behind a PCIe root port of its own, if the
// machine has such ones. A device that names its bus stays there.
func (m *Machine) behindPort(args []string) []string {
	device := &args[len(args)-1]
	if !m.config.RootPorts || strings.Contains(*device, ",bus=") {
		return args
	}
	m.rootPorts++
	*device += fmt.Sprintf(",bus=port%d", m.rootPorts)
	return append([]string{"-device", fmt.Sprintf("pcie-root-port,id=port%d,chassis=%d", m.rootPorts, m.rootPorts)}, args...)
}

// board is the kind of machine. Secure Boot needs system management mode, in which alone the
// variables of the firmware can be written (OvmfPkg/README, "SMM support").
func (c Config) board() string {
	if c.SecureBoot {
		return "q35,smm=on"
	}
	return "q35"
}

// firmware prepares EFI with variables of the machine's own.
func (m *Machine) firmware() ([]string, error) {
	candidates, secured := firmwares, []string(nil)
	if m.config.SecureBoot {
		candidates = secureFirmwares
		secured = []string{"-global", "driver=cfi.pflash01,property=secure,value=on", "-global", "ICH9-LPC.disable_s3=1"}
	}
	for _, f := range candidates {
		if _, err := os.Stat(f[0]); err != nil {
			continue
		}
		if err := copyFile(f[1], m.path("variables.fd")); err != nil {
			return nil, fmt.Errorf("make the variables of the firmware: %w", err)
		}
		return append(secured,
			"-drive", "if=pflash,format=raw,unit=0,readonly=on,file="+f[0],
			"-drive", "if=pflash,format=raw,unit=1,file="+escape(m.path("variables.fd"))), nil
	}
	return nil, errors.New("no EFI for virtual machines is here: run `make setup` (Debian: apt-get install ovmf)")
}

func (s System) argument() string {
	parts := []string{"type=1"}
	for _, field := range [][2]string{
		{"manufacturer", s.Vendor}, {"product", s.Product}, {"serial", s.Serial}, {"uuid", s.UUID},
	} {
		if field[1] != "" {
			parts = append(parts, field[0]+"="+escape(field[1]))
		}
	}
	return strings.Join(parts, ",")
}

func (d Disk) arguments(n int) ([]string, error) {
	format, id := d.Format, fmt.Sprintf("disk%d", n)
	if format == "" {
		format = "raw"
	}
	args := []string{"-drive", fmt.Sprintf("if=none,id=%s,format=%s,cache=unsafe,discard=unmap,detect-zeroes=off,file=%s", id, format, escape(d.Path))}
	var device string
	switch d.Bus {
	case "", "virtio":
		device = "virtio-blk-pci,drive=" + id
	case "scsi":
		args = append(args, "-device", fmt.Sprintf("virtio-scsi-pci,id=scsi%d", n))
		device = fmt.Sprintf("scsi-hd,bus=scsi%d.0,drive=%s", n, id)
	case "sata":
		device = fmt.Sprintf("ide-hd,bus=ide.%d,drive=%s", n, id) // q35 has them as AHCI
	case "nvme":
		device = "nvme,drive=" + id
	default:
		return nil, fmt.Errorf("a disk has the bus %q: use virtio, scsi, sata or nvme", d.Bus)
	}
	if d.Serial != "" {
		device += ",serial=" + escape(d.Serial)
	}
	if d.WWN != "" {
		device += ",wwn=" + d.WWN
	}
	return append(args, "-device", fmt.Sprintf("%s,bootindex=%d", device, n+1)), nil
}

// network returns the arguments of one interface.
func (m *Machine) network(ctx context.Context, n int, c Network) ([]string, error) {
	id := fmt.Sprintf("net%d", n)
	device := "virtio-net-pci,romfile=,netdev=" + id
	if c.MAC != "" {
		device += ",mac=" + c.MAC
	}
	if c.Speed != 0 {
		device += fmt.Sprintf(",speed=%d,duplex=full", c.Speed)
	}
	if c.Switch != "" {
		return []string{
			"-netdev", fmt.Sprintf("stream,id=%s,server=%s,addr.type=unix,addr.path=%s", id, onOff(c.SwitchListen), escape(c.Switch)), "-device", device,
		}, nil
	}
	backend := "user,id=" + id + ",restrict=" + onOff(!c.Open)
	if c.NoIPv4 {
		backend += ",ipv4=off,ipv6=on"
	}
	address := c.Address
	if address == "" {
		address = guestAddress
	}
	for i, guest := range c.Forward {
		port := 0
		if i < len(c.ForwardFrom) {
			port = c.ForwardFrom[i]
		}
		if port == 0 {
			var err error
			if port, err = FreePort(ctx); err != nil {
				return nil, err
			}
		}
		m.ports[guest] = port
		backend += fmt.Sprintf(",hostfwd=tcp:127.0.0.1:%d-%s:%d", port, address, guest)
	}
	for _, port := range c.Reach {
		// One process for each connection: a character device would carry only one at a time.
		backend += fmt.Sprintf(",guestfwd=tcp:%s:%d-cmd:nc -N 127.0.0.1 %d", GatewayAddress, port, port)
	}
	return []string{"-netdev", backend, "-device", device}, nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// FreePort returns a port of loopback that nobody listens on. It is outside the range for outgoing
// connections, none of which takes it before it is listened on.
func FreePort(ctx context.Context) (port int, err error) {
	for range 100 {
		port = 20000 + rand.IntN(12000) //nolint:gosec // any will do
		var listener net.Listener
		if listener, err = new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, listener.Close()
		}
	}
	return 0, err
}

// escape writes a value of one of QEMU's options, in which a comma is doubled.
func escape(value string) string { return strings.ReplaceAll(value, ",", ",,") }

// plain returns a name that is no option. Threads of QEMU say then what they are for (see Hang).
func plain(name string) string { return "guest=" + escape(name) + ",debug-threads=on" }

// KVM reports whether hardware virtualization really works here, by booting a kernel until it says
// that it finds no root file system. Neither an openable /dev/kvm nor a firmware that speaks tells
// that. It takes a second where it works, and the whole patience where it does not.
func KVM(ctx context.Context, kernel string, patience time.Duration) bool {
	file, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	_ = file.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	probe := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "kvm", "-machine", "q35", "-nodefaults", "-display", "none", "-m", "256",
		"-kernel", kernel, "-append", "console=ttyS0 panic=-1", "-no-reboot", "-serial", "stdio")
	probe.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	output, err := probe.StdoutPipe()
	if err != nil || start(probe) != nil {
		return false
	}
	words, err := io.ReadAll(output) // until the panic ends it
	return probe.Wait() == nil && err == nil && strings.Contains(string(words), "Kernel panic")
}
