package kexec

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

const mebibyte = 1 << 20

// spareMemory is what the system in memory needs besides its files, in bytes: the kernel, the agent
// and the window of a compressed image.
const spareMemory = 192 * mebibyte

// Plan is what a jump needs of its host.
type Plan struct {
	root string
	// Release of the running kernel, and the path of its image.
	Release string
	Image   string
	// CommandLine is what the kernel is started with.
	CommandLine string
	// Modules are in the order in which they are loaded.
	Modules []Module
	// Firmware are files that the modules ask for, by their path below /lib/firmware.
	Firmware []string
	// unpacked is how large modules and firmware are, in bytes, as Build carries them.
	unpacked int64
	// Warnings are what an operator should know of the jump, although it does not prevent it.
	Warnings []string
}

// Survey looks at the host below root and returns how it can jump. The kinds of virtual network
// interfaces that the host has (bond, vlan, bridge) decide which modules are needed besides those
// of the hardware. An error has everything that speaks against a jump, in one sentence each.
func Survey(root string, kinds []string) (*Plan, error) {
	p := &Plan{root: root}
	var against []string
	note := func(err error) {
		if err != nil {
			against = append(against, err.Error())
		}
	}
	note(p.architecture())
	note(p.permitted())
	note(p.kernel(runtime.GOARCH))
	if p.Release != "" {
		note(p.chooseModules(kinds))
	}
	note(p.memory())
	if !p.hasWatchdog() {
		p.warn("no hardware watchdog is here, or its driver is not loaded: a kernel in memory that hangs stays so until somebody restarts the machine")
	}
	p.quoted()
	options := p.options()
	p.CommandLine = p.commandLine(options)
	if len(options) > 0 && len(p.CommandLine) > maxCommandLine {
		p.warn("the parameters of modules in /etc/modprobe.d and the like are not carried over, because the kernel's command line would be too long")
		p.CommandLine = p.commandLine(nil)
	}
	note(p.acpi(runtime.GOARCH))
	if len(p.CommandLine) > longestCommandLine {
		note(fmt.Errorf("the kernel's command line would have %d bytes, and kernels take %d", len(p.CommandLine), longestCommandLine))
	}
	if len(against) > 0 {
		return nil, errors.New(strings.Join(against, "; "))
	}
	return p, nil
}

// acpi has the kernel in memory find the tables of ACPI. One of x86 that makes no use of EFI's
// runtime services (efi=noruntime, or a real-time kernel) hands nothing of EFI to the next one
// (setup_efi_state of arch/x86/kernel/kexec-bzimage64.c), but the place of the tables where its own
// boot parameters have it, as before Linux 6.6.
func (p *Plan) acpi(goarch string) error {
	if goarch != "amd64" || !p.has("sys/firmware/efi") || p.has("sys/firmware/efi/runtime-map") {
		return nil
	}
	p.warn("the kernel makes no use of EFI's runtime services: in memory no boot entry can be made, and no last words be left")
	if toldACPI(p.root) {
		return nil
	}
	tables := "\n" + p.text("sys/firmware/efi/systab") + "\n"
	address := cmp.Or(between(tables, "\nACPI20=", "\n"), between(tables, "\nACPI=", "\n"))
	if address == "" || p.lockdown() != "" { // one that is locked down is not told of tables
		return errors.New("the kernel in memory would not find the tables of ACPI, because this one makes no use of EFI's runtime services: " +
			"start one that does (efi=runtime on the kernel's command line)")
	}
	p.CommandLine += " acpi_rsdp=" + address
	return nil
}

// toldACPI says whether the boot parameters of the kernel, which it hands on, have the place of the
// tables of ACPI.
func toldACPI(root string) bool {
	const place = 0x70 // acpi_rsdp_addr of struct boot_params
	told, _ := os.ReadFile(filepath.Join(root, "sys/kernel/boot_params/data"))
	return len(told) >= place+8 && binary.LittleEndian.Uint64(told[place:]) != 0
}

// lockdown says how the kernel is locked down; "": it is not.
func (p *Plan) lockdown() string {
	if mode := between(p.text("sys/kernel/security/lockdown"), "[", "]"); mode != "none" {
		return mode
	}
	return ""
}

func (p *Plan) path(name string) string { return filepath.Join(p.root, name) }

func (p *Plan) has(name string) bool {
	_, err := os.Stat(p.path(name))
	return err == nil
}

// text returns the content of a small file, trimmed; "" when there is none.
func (p *Plan) text(name string) string {
	data, err := os.ReadFile(p.path(name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func (p *Plan) warn(format string, args ...any) {
	p.Warnings = append(p.Warnings, fmt.Sprintf(format, args...))
}

// architecture wants one whose kernels this package knows.
func (p *Plan) architecture() error {
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return fmt.Errorf("kexec is not supported on %s", runtime.GOARCH)
	}
	return nil
}

// permitted wants a kernel of one's own that may be replaced.
func (p *Plan) permitted() error {
	if name := p.text("run/systemd/container"); name != "" {
		return fmt.Errorf("this is a container (%s), which has no kernel of its own", name)
	}
	for _, mark := range []string{".dockerenv", "run/.containerenv", "proc/vz/veinfo"} {
		if _, err := os.Stat(p.path(mark)); err == nil {
			return errors.New("this is a container, which has no kernel of its own")
		}
	}
	if ids := strings.Fields(p.text("proc/self/uid_map")); len(ids) == 3 && (ids[0] != "0" || ids[1] != "0") {
		return errors.New("this is a user namespace, which has no kernel of its own")
	}
	if p.text("sys/hypervisor/type") == "xen" && p.text("sys/hypervisor/guest_type") == "PV" {
		return errors.New("this is a paravirtualised guest of Xen, whose kernel cannot start another one")
	}
	if p.text("proc/sys/kernel/kexec_load_disabled") == "1" {
		return errors.New("kexec is disabled until the next boot (sysctl kernel.kexec_load_disabled is 1)")
	}
	if _, err := os.Stat(p.path("sys/kernel/kexec_loaded")); err != nil {
		return errors.New("the kernel was built without kexec (/sys/kernel/kexec_loaded is not there)")
	}
	if p.text("sys/kernel/kexec_loaded") == "1" {
		p.warn("another kernel was loaded for kexec already; it is replaced")
	}
	if mode := p.lockdown(); mode != "" {
		p.warn("the kernel is locked down (%s): it starts only a kernel whose signature it trusts", mode)
	}
	return nil
}

// hasWatchdog says whether the kernel has a watchdog that is not its own, and so has the one in
// memory. That of IPMI is of no class.
func (p *Plan) hasWatchdog() bool {
	devices, _ := filepath.Glob(p.path("sys/class/watchdog/*/device"))
	return len(devices) > 0 || slices.Contains(p.loaded(), "ipmi_watchdog")
}

// memory wants room for the files. Before the jump they are there three times: as Build has written
// them, as the kernel reads them, and where it puts them for the jump. After it they are there
// twice (as they are handed over, and as they are unpacked), besides what runs in memory.
func (p *Plan) memory() error {
	files := p.unpacked
	for _, name := range []string{"proc/self/exe", p.Image} {
		if info, err := os.Stat(p.path(name)); err == nil {
			files += info.Size()
		}
	}
	before, after := 3*files, 2*files+spareMemory
	total, available := p.meminfo("MemTotal"), p.meminfo("MemAvailable")
	switch {
	case total == 0:
		p.warn("the kernel does not say how much memory there is")
	case total < after:
		return fmt.Errorf("the machine has %d MiB of memory, and at least %d MiB are needed", total/mebibyte, after/mebibyte)
	case available < before:
		return fmt.Errorf("%d MiB of memory are free, and at least %d MiB are needed", available/mebibyte, before/mebibyte)
	}
	return nil
}

// meminfo returns a value of /proc/meminfo in bytes; 0 when there is none.
func (p *Plan) meminfo(key string) int64 {
	for _, line := range strings.Split(p.text("proc/meminfo"), "\n") {
		fields := strings.Fields(line)
		if len(fields) >= 2 && fields[0] == key+":" {
			kibibytes, _ := strconv.ParseInt(fields[1], 10, 64)
			return kibibytes << 10
		}
	}
	return 0
}

// carried are the kernel parameters that say how hardware and consoles are reached, and how the
// machine restarts. An entry that ends in a dot stands for all that begin so: the parameters of a
// module, which package pid1 gives to it.
var carried = []string{
	"console", "earlycon", "earlyprintk", "keep_bootcon", "no_console_suspend", "nomodeset", "vga", "video",
	"acpi", "acpi_rsdp", "noapic", "nolapic", "apic", "pci", "pcie_aspm", "pcie_ports", "iommu", "intel_iommu", "amd_iommu",
	"irqpoll", "irqaffinity", "noirqdebug", "clocksource", "tsc", "hpet", "reboot", "efi", "mem", "memmap", "numa",
	"swiotlb", "dma_debug", "mitigations", "spectre_v2", "nvme_core.", "scsi_mod.", "libata.", "ipv6.",
	"tp_printk", "lpj", "notsc", "no_timer_check", "x2apic", "nox2apic",
}

// commandLine returns the parameters for the system in memory: the options, and those of the
// running kernel that are carried, or are of a module that is.
func (p *Plan) commandLine(options []string) string {
	parts := slices.Clone(options)
	for _, word := range words(p.text("proc/cmdline")) {
		key, _, _ := strings.Cut(word, "=")
		module, _, ofModule := strings.Cut(key, ".")
		if ofModule && p.takesParameters(normal(module)) && !strings.Contains(word, `"`) ||
			slices.ContainsFunc(carried, func(c string) bool { return key == c || strings.HasSuffix(c, ".") && strings.HasPrefix(key, c) }) {
			parts = append(parts, word)
		}
	}
	// A kernel that panics restarts the machine, and so does one that loses its first process. One
	// that a processor is stuck in panics: after 30 seconds without interrupts, after 60 in the
	// kernel. That is three times what kernels have by default, because a virtual machine may be kept
	// waiting. One of whose processors has lost its timer is idle, and waits for ever: it panics when
	// it has noticed that ten times, after some minutes (Linux 5.11; older ones ignore it).
	return strings.Join(append(parts, "rdinit=/init", "panic=10", "oops=panic",
		"softlockup_panic=1", "nmi_watchdog=panic", "watchdog_thresh=30",
		"sysctl.kernel.panic_on_rcu_stall=1", "sysctl.kernel.max_rcu_stall_to_panic=10", "printk.devkmsg=on"), " ")
}

// between returns what stands between two marks, "" where they are not there.
func between(text, from, to string) string {
	_, rest, found := strings.Cut(text, from)
	inner, _, closed := strings.Cut(rest, to)
	if !found || !closed {
		return ""
	}
	return inner
}
