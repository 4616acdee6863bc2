package inventory

import (
	"fmt"
	"strings"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/hardware"
)

// Text returns a report for people to read.
func Text(report *agentv1.HardwareReport) []byte {
	var all lines
	line := all.add
	system := report.GetSystem()
	line("system", system.GetVendor(), system.GetProduct(), named("serial", system.GetSerial()), named("UUID", system.GetUuid()))
	line("chassis", named("serial", system.GetChassisSerial()), named("asset tag", system.GetChassisAssetTag()))
	line("board", system.GetBoardVendor(), system.GetBoardProduct())
	line("firmware", system.GetFirmwareVendor(), system.GetFirmwareVersion(), system.GetFirmwareDate())
	line("security", hardware.Security(system))
	if bmc := report.GetBmc(); bmc != nil {
		line("BMC", hardware.BMC(bmc))
	}
	line("kernel", system.GetKernel(), system.GetArchitecture())
	for _, cpu := range report.GetCpus() {
		line(fmt.Sprintf("cpu %d", cpu.GetSocket()), cpu.GetVendor(), cpu.GetModel(),
			fmt.Sprintf("%d cores, %d threads", cpu.GetCores(), cpu.GetThreads()), hardware.CoreKinds(cpu), named("microcode", cpu.GetMicrocode()))
	}
	if n := report.GetOfflineThreads(); n > 0 {
		line("offline", fmt.Sprintf("%d threads: %s", n, report.GetOfflineList()))
	}
	for _, node := range report.GetNumaNodes() {
		line(fmt.Sprintf("node %d", node.GetNode()), named("threads", node.GetCpus()), bytesText(node.GetMemoryBytes()))
	}
	memory := report.GetMemory()
	line("memory", bytesText(memory.GetUsableBytes())+" usable", bytesText(memory.GetInstalledBytes())+" installed")
	for _, module := range memory.GetModules() {
		line("module "+module.GetLocator(), bytesText(module.GetSizeBytes()), module.GetType(), hardware.ModuleSpeed(module), module.GetVendor(),
			module.GetPartNumber())
	}
	for _, disk := range report.GetBlockDevices() {
		line("disk "+disk.GetName(), bytesText(disk.GetSizeBytes()), disk.GetProtocol(), disk.GetVendor(), disk.GetModel(),
			named("serial", disk.GetSerial()), named("WWN", disk.GetWwn()), named("firmware", disk.GetFirmware()),
			named("also", strings.Join(disk.GetOtherPaths(), " ")), healthText(disk.GetHealth()))
	}
	for _, nic := range report.GetNetworkInterfaces() {
		link := "no link"
		if nic.GetLink() {
			link = "link"
		}
		if speed := hardware.LinkSpeed(nic); speed != "" {
			link = "link " + speed
		}
		permanent := ""
		if nic.GetPermanentMac() != nic.GetMac() {
			permanent = named("permanent", nic.GetPermanentMac())
		}
		line("nic "+nic.GetName(), named(nic.GetKind()+" on", strings.Join(nic.GetLower(), " ")), nic.GetMac(), permanent, nic.GetDriver(),
			named("firmware", nic.GetFirmware()), link, strings.Join(nic.GetAddresses(), " "))
	}
	for _, device := range report.GetPciDevices() {
		line("pci "+device.GetAddress(), device.GetKind(), device.GetModel(), device.GetId(), named("subsystem", device.GetSubsystemId()), device.GetDriver())
	}
	for _, warning := range report.GetWarnings() {
		line("warning", warning)
	}
	var out []byte
	for _, l := range all.lines {
		out = fmt.Appendf(out, "%-*s  %s\n", all.wide, l[0], l[1])
	}
	return out
}

// lines are those of a report, each with its name. Wide is the longest name.
type lines struct {
	lines [][2]string
	wide  int
}

// add is not inlined, because that makes the agent larger.
//
//go:noinline
func (l *lines) add(name string, words ...string) {
	l.lines, l.wide = append(l.lines, [2]string{name, join(words...)}), max(l.wide, len(name))
}

// healthText shows what is wrong with a drive, and how worn it is.
func healthText(health *agentv1.Health) string {
	if health == nil {
		return ""
	}
	words := []string{"healthy"}
	if !health.GetPassed() {
		words[0] = "expects to fail"
	}
	for _, count := range []struct {
		n    int64
		what string
	}{
		{health.GetPendingSectors(), "pending sectors"},
		{health.GetOfflineUncorrectableSectors(), "unreadable sectors"},
		{health.GetReallocatedSectors(), "reallocated sectors"},
		{health.GetMediaErrors(), "media errors"},
	} {
		if count.n > 0 {
			words = append(words, fmt.Sprintf("%d %s", count.n, count.what))
		}
	}
	if health.GetPercentageUsed() >= 0 {
		words = append(words, fmt.Sprintf("%d %% worn", health.GetPercentageUsed()))
	}
	return join(words...)
}

// join puts the words that are there into a line.
func join(words ...string) string {
	kept := words[:0]
	for _, word := range words {
		if word != "" {
			kept = append(kept, word)
		}
	}
	return strings.Join(kept, ", ")
}

// named is not inlined, because that makes the agent larger.
//
//go:noinline
func named(name, value string) string {
	if value == "" {
		return ""
	}
	return name + " " + value
}

// bytesText shows a size in binary units.
func bytesText(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	size, unit := float64(n), 0
	for size >= 1024 && unit < len(units)-1 {
		size, unit = size/1024, unit+1
	}
	return fmt.Sprintf("%.4g %s", size, units[unit])
}
