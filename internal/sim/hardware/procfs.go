package hardware

import (
	"fmt"
	"strconv"
	"strings"
)

// KernelRelease is what the provider's operating system runs.
const KernelRelease = "6.12.48+deb13-amd64"

const kernelVersion = "Linux version " + KernelRelease + " (debian-kernel@lists.debian.org) (x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) " +
	"14.2.0, GNU ld (GNU Binutils for Debian) 2.44) #1 SMP PREEMPT_DYNAMIC Debian 6.12.48-1 (2025-09-20)"

// procfs adds the part of /proc that stays the same from boot to boot.
func (m Machine) procfs(t *tree) {
	t.raw("proc/cpuinfo", m.cpuinfo(), false)
	t.raw("proc/meminfo", m.meminfo(), false)
	t.file("proc/version", kernelVersion)
	t.file("proc/sys/kernel/osrelease", KernelRelease)
	t.dir("proc/sys/kernel/random")
}

func (m Machine) cpuinfo() string {
	cpu := m.Model.CPU
	var b strings.Builder
	for n := range m.Model.Sockets * cpu.Threads {
		socket, thread := n/cpu.Threads, n%cpu.Threads
		b.WriteString(lines(
			"processor", strconv.Itoa(n), "vendor_id", cpu.Vendor, "cpu family", strconv.Itoa(cpu.Family), "model\t", strconv.Itoa(cpu.Model),
			"model name", cpu.Name, "stepping", strconv.Itoa(cpu.Stepping), "microcode", "0xf0", "cpu MHz\t", fmt.Sprintf("%d.000", cpu.MHz),
			"cache size", fmt.Sprintf("%d KB", cpu.CacheKiB), "physical id", strconv.Itoa(socket), "siblings", strconv.Itoa(cpu.Threads),
			"core id\t", strconv.Itoa(thread%cpu.Cores), "cpu cores", strconv.Itoa(cpu.Cores), "apicid\t", strconv.Itoa(n),
			"initial apicid", strconv.Itoa(n), "fpu\t", "yes", "fpu_exception", "yes", "cpuid level", "22", "wp\t", "yes",
			"flags\t", "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat clflush mmx fxsr sse sse2 ht syscall nx lm",
			"bogomips", fmt.Sprintf("%d.00", 2*cpu.MHz), "clflush size", "64", "cache_alignment", "64",
			"address sizes", "46 bits physical, 48 bits virtual",
		))
		b.WriteString("power management:\n\n")
	}
	return b.String()
}

// meminfo says what the kernel keeps of the memory: all but about 1.5 percent.
func (m Machine) meminfo() string {
	total := m.Model.DIMMs * m.Model.DIMM.SizeMiB * 1024
	usable := total - total/64
	var b strings.Builder
	for _, row := range []struct {
		name string
		kib  int
	}{
		{"MemTotal", usable},
		{"MemFree", usable - usable/16},
		{"MemAvailable", usable - usable/20},
		{"Buffers", 20480},
		{"Cached", usable / 64},
		{"SwapTotal", 0},
		{"SwapFree", 0},
	} {
		fmt.Fprintf(&b, "%-16s%8d kB\n", row.name+":", row.kib)
	}
	return b.String()
}
