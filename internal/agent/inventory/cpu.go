package inventory

import (
	"bytes"
	"cmp"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// maxCPUInfo bounds /proc/cpuinfo: up to 4 KiB for each of some thousand threads.
const maxCPUInfo = 16 << 20

const cpuDir = "sys/devices/system/cpu"

// maxKinds bounds the kinds of cores of one socket.
const maxKinds = 8

// thread is one processor as the kernel tells of it. -1: not said.
type thread struct {
	number                    int32
	vendor, model, microcode  string
	implementer, part         string // arm64
	family, version, stepping int32
	physicalID, coreID        int32 // x86
	socket, cluster           int32
	siblings                  string // threads of the same core, itself included, as a list
	kind                      string // of its core, where a processor may have several
}

// coreKinds are the kinds of cores of an Intel processor, with the performance counters of each,
// whose directory lists the threads (arch/x86/events/intel/core.c of Linux).
var coreKinds = []struct{ counters, name string }{
	{"cpu_core", "P-core"}, {"cpu_atom", "E-core"}, {"cpu_lowpower", "LP E-core"},
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
		p.place(&threads[i])
	}
	for _, kind := range coreKinds {
		list := p.list("sys/devices", kind.counters, "cpus")
		for i := range threads {
			if _, found := slices.BinarySearch(list, threads[i].number); found {
				threads[i].kind = kind.name
			}
		}
	}
	processors := tables.sockets()
	if p.clustersAreSockets(threads) {
		joinClusters(threads, len(processors))
	}
	cpus := sockets(threads)
	for i, cpu := range cpus {
		if cpu.GetModel() == "" && i < len(processors) { // some architectures have the name there alone
			cpu.Model = processors[i].text(0x10)
		}
	}
	return cpus
}

// sockets returns the processors of SMBIOS whose sockets are populated (SMBIOS 3.9, section 7.5).
func (t *smbiosTables) sockets() []*smbiosStructure {
	return slices.DeleteFunc(t.all(smbiosProcessor), func(s *smbiosStructure) bool { return s.byte(0x18)&(1<<6) == 0 })
}

// place finds out to which core and socket a thread belongs. The lists of siblings are what the
// kernel goes by, and lscpu. The IDs of cores begin again in each die or cluster. The last resort
// is one socket of single cores.
func (p *probe) place(t *thread) {
	dir := filepath.Join(cpuDir, "cpu"+strconv.Itoa(int(t.number)), "topology")
	if t.siblings = p.text(dir, "core_cpus_list"); t.siblings == "" {
		t.siblings = p.text(dir, "thread_siblings_list") // before Linux 5.3
	}
	t.socket, t.cluster = parseInt32(p.text(dir, "physical_package_id")), parseInt32(p.text(dir, "cluster_id"))
	if t.socket < 0 {
		t.socket = max(0, t.physicalID)
	}
	if t.siblings != "" {
		return
	}
	core := parseInt32(p.text(dir, "core_id"))
	if core < 0 {
		if core = t.coreID; core < 0 {
			core = t.number
		}
	}
	t.siblings = strconv.Itoa(int(t.socket)) + "/" + strconv.Itoa(int(core))
}

// clustersAreSockets tells whether the kernel takes clusters for sockets. Linux before 6.0 does,
// where a device tree describes the cores: there is no table of processors of ACPI then, and no
// cluster has a number.
func (p *probe) clustersAreSockets(threads []thread) bool {
	return !p.exists("sys/firmware/acpi/tables/PPTT") &&
		!slices.ContainsFunc(threads, func(t thread) bool { return t.physicalID >= 0 || t.cluster >= 0 || t.family >= 0 })
}

// joinClusters divides clusters among as many sockets as SMBIOS knows. Without SMBIOS, or if they
// cannot be divided, there is one socket.
func joinClusters(threads []thread, sockets int) {
	clusters := numbers(threads)
	if sockets == 0 || len(clusters)%sockets != 0 {
		sockets = 1
	}
	for i := range threads {
		at, _ := slices.BinarySearch(clusters, threads[i].socket)
		threads[i].socket = int32(at / (len(clusters) / sockets))
	}
}

// numbers returns the kernel's numbers of the sockets, in order.
func numbers(threads []thread) []int32 {
	seen := make(map[int32]bool)
	for _, t := range threads {
		seen[t.socket] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// sockets groups threads by socket and counts what is in each. Sockets are counted from 0, because
// what the kernel has for their numbers may be anything on arm64.
func sockets(threads []thread) []*agentv1.Cpu {
	order := numbers(threads)
	cpus := make([]*agentv1.Cpu, min(len(order), maxDevices))
	models := make([][]string, len(cpus))
	cores := make(map[string]bool)
	// Pointers, because the code that sorts lists of them is in the agent already.
	ordered := make([]*thread, len(threads))
	for i := range threads {
		ordered[i] = &threads[i]
	}
	slices.SortStableFunc(ordered, func(a, b *thread) int { return cmp.Compare(a.number, b.number) })
	for _, t := range ordered {
		at, _ := slices.BinarySearch(order, t.socket)
		if at >= len(cpus) {
			continue
		}
		if cpus[at] == nil {
			cpus[at] = &agentv1.Cpu{
				Vendor: t.vendor, Socket: int32(at), Microcode: t.microcode,
				Family: max(0, t.family), ModelNumber: max(0, t.version), Stepping: max(0, t.stepping),
			}
		}
		cpu, newCores := cpus[at], int32(0)
		if core := strconv.Itoa(at) + ":" + t.siblings; !cores[core] {
			cores[core] = true
			newCores = 1
		}
		cpu.Threads++
		cpu.Cores += newCores
		countKind(cpu, cmp.Or(t.kind, t.model), newCores)
		if t.model != "" && !slices.Contains(models[at], t.model) && len(models[at]) < maxKinds {
			models[at] = append(models[at], t.model)
		}
	}
	for i, cpu := range cpus {
		cpu.Model = clean(strings.Join(models[i], " + "))
		if len(cpu.GetCoreKinds()) == 1 {
			cpu.CoreKinds = nil
		}
	}
	return cpus
}

// countKind counts a thread, and a core if it is the first thread of one, to its kind.
func countKind(cpu *agentv1.Cpu, name string, cores int32) {
	at := slices.IndexFunc(cpu.GetCoreKinds(), func(k *agentv1.CoreKind) bool { return k.GetName() == name })
	if at < 0 {
		if at = len(cpu.GetCoreKinds()); name == "" || at == maxKinds {
			return
		}
		cpu.CoreKinds = append(cpu.CoreKinds, &agentv1.CoreKind{Name: name})
	}
	kind := cpu.GetCoreKinds()[at]
	kind.Threads++
	kind.Cores += cores
}

// parseCPUInfo reads /proc/cpuinfo: lines "key : value", one block for each processor, in the forms
// of x86, arm64 and RISC-V.
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
			threads = append(threads, thread{
				number: number, socket: -1, cluster: -1, physicalID: -1, coreID: -1, family: -1, version: -1, stepping: -1,
			})
			current = &threads[len(threads)-1]
		}
		if current != nil {
			current.set(key, value)
		}
	}
	for i := range threads {
		threads[i].nameArm()
	}
	return threads
}

// set takes over one line of a block.
func (t *thread) set(key string, value func() string) {
	switch key {
	case "vendor_id":
		t.vendor = value()
	case "model name":
		t.model = value()
	case "cpu family":
		t.family = parseInt32(value())
	case "model":
		t.version = parseInt32(value())
	case "stepping":
		t.stepping = parseInt32(value())
	case "microcode":
		t.microcode = value()
	case "physical id":
		t.physicalID = parseInt32(value())
	case "core id":
		t.coreID = parseInt32(value())
	case "CPU implementer":
		t.implementer = strings.ToLower(value())
	case "CPU part":
		t.part = strings.ToLower(value())
	case "uarch": // RISC-V: maker and model
		t.model = value()
		t.vendor, _, _ = strings.Cut(t.model, ",")
	case "mvendorid":
		if t.vendor == "" {
			t.vendor = value()
		}
	}
}

// parseInt32 returns a number from 0 up, or -1.
func parseInt32(s string) int32 {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 {
		return -1
	}
	return int32(n)
}
