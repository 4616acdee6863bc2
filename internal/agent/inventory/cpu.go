package inventory

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"strings"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// maxCPUInfo bounds /proc/cpuinfo: about 2 KiB for each of a thousand threads.
const maxCPUInfo = 4 << 20

// thread is one processor as /proc/cpuinfo tells of it. -1: not said.
type thread struct {
	number, socket, core      int32
	vendor, model             string
	family, version, stepping int32
}

// cpus describes the sockets.
func (p *probe) cpus(tables *smbiosTables) []*agentv1.Cpu {
	data, err := p.read(maxCPUInfo, "proc/cpuinfo")
	if err != nil {
		p.warn("/proc/cpuinfo cannot be read: %s", reason(err))
		return nil
	}
	threads := parseCPUInfo(data)
	if len(threads) == 0 {
		p.warn("/proc/cpuinfo names no processor")
		return nil
	}
	for i := range threads {
		p.complete(&threads[i])
	}
	cpus := sockets(threads)
	processors := tables.all(smbiosProcessor) // other architectures than x86 have the name there alone
	for i, cpu := range cpus {
		if cpu.GetModel() == "" && i < len(processors) {
			cpu.Model = processors[i].text(0x10)
		}
	}
	return cpus
}

// complete takes socket and core from sysfs where /proc/cpuinfo is silent; the last resort is one
// socket of single cores.
func (p *probe) complete(t *thread) {
	dir := "sys/devices/system/cpu/cpu" + strconv.Itoa(int(t.number)) + "/topology"
	if t.socket < 0 {
		t.socket = max(0, parseInt32(p.text(dir, "physical_package_id")))
	}
	if t.core < 0 {
		if t.core = parseInt32(p.text(dir, "core_id")); t.core < 0 {
			t.core = t.number
		}
	}
}

// sockets groups threads by socket and counts what is in each.
func sockets(threads []thread) []*agentv1.Cpu {
	var cpus []*agentv1.Cpu
	bySocket := make(map[int32]*agentv1.Cpu)
	cores := make(map[[2]int32]bool)
	for _, t := range threads {
		cpu := bySocket[t.socket]
		if cpu == nil {
			if len(cpus) == maxDevices {
				continue
			}
			cpu = &agentv1.Cpu{
				Vendor: t.vendor, Model: t.model, Socket: t.socket,
				Family: max(0, t.family), ModelNumber: max(0, t.version), Stepping: max(0, t.stepping),
			}
			bySocket[t.socket] = cpu
			cpus = append(cpus, cpu)
		}
		cpu.Threads++
		if core := [2]int32{t.socket, t.core}; !cores[core] {
			cores[core] = true
			cpu.Cores++
		}
	}
	slices.SortFunc(cpus, func(a, b *agentv1.Cpu) int { return cmp.Compare(a.GetSocket(), b.GetSocket()) })
	return cpus
}

// parseCPUInfo reads /proc/cpuinfo: lines "key : value", one block for each processor, in the forms
// of x86 and arm64.
func parseCPUInfo(data []byte) []thread {
	var threads []thread
	var current *thread
	for line := range bytes.Lines(data) {
		name, rest, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			continue
		}
		key, value := string(bytes.TrimSpace(name)), func() string { return clean(string(rest)) }
		if key == "processor" {
			number := parseInt32(value())
			if number < 0 {
				current = nil
				continue
			}
			threads = append(threads, thread{number: number, socket: -1, core: -1, family: -1, version: -1, stepping: -1})
			current = &threads[len(threads)-1]
		}
		if current == nil {
			continue
		}
		switch key {
		case "vendor_id":
			current.vendor = value()
		case "model name":
			current.model = value()
		case "cpu family":
			current.family = parseInt32(value())
		case "model":
			current.version = parseInt32(value())
		case "stepping":
			current.stepping = parseInt32(value())
		case "physical id":
			current.socket = parseInt32(value())
		case "core id":
			current.core = parseInt32(value())
		case "CPU implementer":
			current.vendor = armVendor(value())
		}
	}
	return threads
}

// armVendor names the implementer of the main ID register (Arm Architecture Reference Manual,
// MIDR_EL1) as far as servers are built from them.
func armVendor(code string) string {
	vendors := map[string]string{
		"0x41": "ARM", "0x43": "Cavium", "0x46": "Fujitsu", "0x48": "HiSilicon", "0x4e": "NVIDIA", "0x51": "Qualcomm",
		"0x6d": "Microsoft", "0xc0": "Ampere",
	}
	if vendor, ok := vendors[strings.ToLower(code)]; ok {
		return vendor
	}
	return code
}

// parseInt32 returns a number from 0 up, or -1.
func parseInt32(s string) int32 {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 {
		return -1
	}
	return int32(n)
}
