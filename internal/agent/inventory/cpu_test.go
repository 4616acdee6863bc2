package inventory

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

const cpuInfo = `processor	: 0
vendor_id	: GenuineIntel
cpu family	: 6
model		: 85
model name	: Intel(R) Xeon(R) Gold 6130
stepping	: 4
physical id	: 1
core id		: 0

processor	: 1
vendor_id	: GenuineIntel
cpu family	: 6
model		: 85
model name	: Intel(R) Xeon(R) Gold 6130
stepping	: 4
physical id	: 0
core id		: 0

processor	: 2
vendor_id	: GenuineIntel
physical id	: 0
core id		: 0

processor	: 3
vendor_id	: GenuineIntel
physical id	: 0
core id		: 1
`

// core is one thread of a machine as cpuShape draws it: what /proc/cpuinfo says of it beside its
// number, and its files below topology.
type core struct {
	info     string
	topology map[string]string
}

// cpuShape draws a machine of that many threads.
func cpuShape(threads int, draw func(n int) core) map[string]string {
	files := map[string]string{}
	for n := range threads {
		c := draw(n)
		files["proc/cpuinfo"] += fmt.Sprintf("processor\t: %d\n%s\n\n", n, c.info)
		for name, content := range c.topology {
			files[fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/%s", n, name)] = content + "\n"
		}
	}
	return files
}

func with(files map[string]string, path, content string) map[string]string {
	files[path] = content
	return files
}

func TestCPUShapes(t *testing.T) {
	t.Parallel()
	// four sockets of two dies of six cores, whose IDs begin again in each die
	opteron := func(n int) core {
		return core{
			info: fmt.Sprintf("vendor_id : AuthenticAMD\ncpu family : 16\nmodel : 9\nmodel name : AMD Opteron(tm) Processor 6174\n"+
				"stepping : 1\nmicrocode : 0x10000d9\nphysical id : %d\ncore id : %d", n/12, n%6),
			topology: map[string]string{"physical_package_id": fmt.Sprint(n / 12), "core_id": fmt.Sprint(n % 6), "thread_siblings_list": fmt.Sprint(n)},
		}
	}
	xeon := func(n int) core { // two threads a core, with the second ones at the end
		return core{
			info: fmt.Sprintf("vendor_id : GenuineIntel\nphysical id : %d\ncore id : %d", n%2, n%48/2),
			topology: map[string]string{
				"physical_package_id": fmt.Sprint(n % 2), "core_id": fmt.Sprint(n % 48 / 2), "core_cpus_list": fmt.Sprintf("%d,%d", n%48, n%48+48),
			},
		}
	}
	// RISC-V: sixteen clusters of four cores, whose IDs begin again in each
	riscv := func(socket, cluster func(n int) int) func(n int) core {
		return func(n int) core {
			return core{
				info: "hart : 2\nisa : rv64imafdcv\nmmu : sv39\nuarch : thead,c910\nmvendorid : 0x5b7",
				topology: map[string]string{
					"physical_package_id": fmt.Sprint(socket(n)), "cluster_id": fmt.Sprint(cluster(n)),
					"core_id": fmt.Sprint(n % 4), "core_cpus_list": fmt.Sprint(n),
				},
			}
		}
	}
	byFour, none, zero := func(n int) int { return n / 4 }, func(int) int { return -1 }, func(int) int { return 0 }
	arm := func(sockets []int, parts ...string) func(n int) core {
		return func(n int) core {
			return core{
				info: "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: " + parts[n%len(parts)] + "\nCPU revision\t: 1",
				topology: map[string]string{
					"physical_package_id": fmt.Sprint(sockets[n%len(sockets)]), "cluster_id": "-1", "core_id": fmt.Sprint(n % 2), "core_cpus_list": fmt.Sprint(n),
				},
			}
		}
	}
	smbios := func(files map[string]string, populated ...byte) map[string]string {
		table := ""
		for _, status := range populated {
			table += string(structure(4, 26, map[int][]byte{0x10: {1}, 0x18: {status}}, "Big Arm"))
		}
		return with(with(files, "sys/firmware/dmi/tables/smbios_entry_point", entryPoint), "sys/firmware/dmi/tables/DMI", table)
	}
	// eight P-cores of two threads, then eight E-cores
	hybrid := func(n int) core {
		id, siblings := n/2*4, fmt.Sprintf("%d-%d", n/2*2, n/2*2+1)
		if n >= 16 {
			id, siblings = n+16, fmt.Sprint(n)
		}
		return core{
			info:     fmt.Sprintf("vendor_id : GenuineIntel\nmodel name : 12th Gen Intel(R) Core(TM) i9-12900K\nsiblings : 24\nphysical id : 0\ncore id : %d", id),
			topology: map[string]string{"physical_package_id": "0", "core_id": fmt.Sprint(id), "core_cpus_list": siblings},
		}
	}
	const pptt = "sys/firmware/acpi/tables/PPTT"
	same := func(sockets int, like *agentv1.Cpu) []*agentv1.Cpu {
		var list []*agentv1.Cpu
		for n := range sockets {
			list = append(list, &agentv1.Cpu{
				Vendor: like.GetVendor(), Model: like.GetModel(), Family: like.GetFamily(), ModelNumber: like.GetModelNumber(), Stepping: like.GetStepping(),
				Microcode: like.GetMicrocode(), Cores: like.GetCores(), Threads: like.GetThreads(), Socket: int32(n), CoreKinds: like.GetCoreKinds(),
			})
		}
		return list
	}
	for name, test := range map[string]struct {
		files map[string]string
		want  []*agentv1.Cpu
	}{
		"Opteron 6174: IDs of cores begin again in each die": {cpuShape(48, opteron), same(4, &agentv1.Cpu{
			Vendor: "AuthenticAMD", Model: "AMD Opteron(tm) Processor 6174", Family: 16, ModelNumber: 9, Stepping: 1, Microcode: "0x10000d9", Cores: 12, Threads: 12,
		})},
		"two Xeons with hyperthreading":        {cpuShape(96, xeon), same(2, &agentv1.Cpu{Vendor: "GenuineIntel", Cores: 24, Threads: 48})},
		"RISC-V: IDs begin again in a cluster": {cpuShape(64, riscv(zero, byFour)), same(1, &agentv1.Cpu{Vendor: "thead", Model: "thead,c910", Cores: 64, Threads: 64})},
		"RISC-V: clusters as sockets":          {cpuShape(64, riscv(byFour, none)), same(1, &agentv1.Cpu{Vendor: "thead", Model: "thead,c910", Cores: 64, Threads: 64})},
		"arm64 with ACPI: sockets with numbers of the firmware": {
			with(cpuShape(8, arm([]int{8442, 36}, "0xd0c")), pptt, ""), same(2, &agentv1.Cpu{Vendor: "ARM", Model: "Neoverse-N1", Cores: 4, Threads: 4}),
		},
		"arm64 with a device tree: three clusters as sockets": {
			cpuShape(8, arm([]int{0, 0, 0, 0, 1, 1, 2, 2}, "0xd05", "0xd05", "0xd05", "0xd05", "0xd0b")),
			same(1, &agentv1.Cpu{Vendor: "ARM", Model: "Cortex-A55 + Cortex-A76", Cores: 8, Threads: 8, CoreKinds: []*agentv1.CoreKind{
				{Name: "Cortex-A55", Cores: 7, Threads: 7}, {Name: "Cortex-A76", Cores: 1, Threads: 1},
			}}),
		},
		"arm64: clusters of as many sockets as SMBIOS knows": {
			smbios(cpuShape(16, arm([]int{0, 1, 2, 3, 4, 5, 6, 7}, "0xfff")), 0x41, 0x41, 0x00), same(2, &agentv1.Cpu{Vendor: "ARM", Model: "Big Arm", Cores: 8, Threads: 8}),
		},
		"arm64: clusters that cannot be divided": {
			smbios(cpuShape(3, arm([]int{0, 1, 2}, "0xd07")), 0x41, 0x41), same(1, &agentv1.Cpu{Vendor: "ARM", Model: "Cortex-A57", Cores: 3, Threads: 3}),
		},
		"P-cores and E-cores": {
			with(with(cpuShape(24, hybrid), "sys/devices/cpu_core/cpus", "0-15\n"), "sys/devices/cpu_atom/cpus", "16-23\n"),
			same(1, &agentv1.Cpu{Vendor: "GenuineIntel", Model: "12th Gen Intel(R) Core(TM) i9-12900K", Cores: 16, Threads: 24, CoreKinds: []*agentv1.CoreKind{
				{Name: "P-core", Cores: 8, Threads: 16}, {Name: "E-core", Cores: 8, Threads: 8},
			}}),
		},
		"E-cores that the firmware has switched off": {
			with(cpuShape(16, hybrid), "sys/devices/cpu_core/cpus", "0-15\n"),
			same(1, &agentv1.Cpu{Vendor: "GenuineIntel", Model: "12th Gen Intel(R) Core(TM) i9-12900K", Cores: 8, Threads: 16}),
		},
		"no sysfs": {map[string]string{"proc/cpuinfo": cpuInfo}, serverReport().GetCpus()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, Collect(tree(t, test.files)).GetCpus(), protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Threads that are offline are neither in /proc/cpuinfo nor have they a place.
func TestOfflineThreads(t *testing.T) {
	t.Parallel()
	everySecond := make([]string, 100)
	for n := range everySecond {
		everySecond[n] = fmt.Sprint(2*n + 1)
	}
	const cut = "1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31,33,35,37,39,41,43,45,47,49,51,53,55,57,59,61,63,65,67,69,71,73,75,77,79,81,83,85,87,89,91,93,95,97,99," +
		"101,103,105,107,109,111,113,115,117,119,121,123,125,127,129,131,133,135,137,139,141,143,145,147,149,151,153,…"
	for name, test := range map[string]struct {
		present, offline string
		count            int32
		list             string
	}{
		"none":                                {"0-7\n", "\n", 0, ""},
		"two of eight":                        {"0-7\n", "6-7\n", 2, "6-7"},
		"what could be plugged in":            {"0-7\n", "6-63\n", 2, "6-7"},
		"here and there":                      {"0-3,8-11\n", "1,3-9,11\n", 5, "1,3,8-9,11"},
		"more than fit":                       {"0-255\n", strings.Join(everySecond, ",") + "\n", 100, cut},
		"nothing that the kernel would write": {"0-7\n", "7,6\n", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := with(cpuShape(6, func(int) core { return core{info: "vendor_id : GenuineIntel"} }), "sys/devices/system/cpu/present", test.present)
			report := Collect(tree(t, with(files, "sys/devices/system/cpu/offline", test.offline)))
			if report.GetOfflineThreads() != test.count || report.GetOfflineList() != test.list {
				t.Errorf("%d: %q", report.GetOfflineThreads(), report.GetOfflineList())
			}
			if report.GetCpus()[0].GetThreads() != 6 {
				t.Errorf("%v", report.GetCpus())
			}
		})
	}
}

// FuzzCPUList: what was read is written again as the same numbers.
func FuzzCPUList(f *testing.F) {
	f.Add("0-3,7\n")
	f.Add("0-2147483647")
	f.Add("3-1,-,,0x1")
	f.Fuzz(func(t *testing.T, text string) {
		numbers := parseList(text)
		if !slices.IsSorted(numbers) || len(slices.Compact(slices.Clone(numbers))) != len(numbers) || len(numbers) > maxThreads {
			t.Errorf("%q: %d numbers", text, len(numbers))
		}
		written := formatList(numbers)
		whole, cut := strings.CutSuffix(written, ",…")
		again := parseList(whole)
		if len(written) > maxText || clean(written) != written || !slices.Equal(again, numbers[:len(again)]) || !cut && len(again) != len(numbers) {
			t.Errorf("%q is written as %q", text, written)
		}
	})
}

func FuzzCPUInfo(f *testing.F) {
	f.Add([]byte(cpuInfo))
	f.Add([]byte("processor: 99999999999\nmodel: -1\n: \nprocessor : 0\nmodel name : \xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, cpu := range sockets(parseCPUInfo(data)) {
			if !utf8.ValidString(cpu.GetModel()) || cpu.GetCores() > cpu.GetThreads() || cpu.GetFamily() < 0 {
				t.Errorf("%v", cpu)
			}
		}
	})
}

func TestTextOfCPUs(t *testing.T) {
	t.Parallel()
	text := string(Text(&agentv1.HardwareReport{
		Cpus: []*agentv1.Cpu{{Model: "i9-12900K", Cores: 16, Threads: 22, CoreKinds: []*agentv1.CoreKind{
			{Name: "P-core", Cores: 8, Threads: 14}, {Name: "E-core", Cores: 8, Threads: 8},
		}}},
		OfflineThreads: 2, OfflineList: "14-15",
	}))
	for _, want := range []string{"i9-12900K, 16 cores, 22 threads, 8 × P-core + 8 × E-core\n", "2 threads: 14-15\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}
}
