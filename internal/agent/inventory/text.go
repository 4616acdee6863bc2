package inventory

import (
	"fmt"
	"strings"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/hardware"
)

// Text returns a report for people to read.
func Text(report *agentv1.HardwareReport) []byte {
	var lines [][2]string
	wide := 0
	line := func(format string, args ...any) {
		name, said, _ := strings.Cut(fmt.Sprintf(format, args...), "\t")
		lines, wide = append(lines, [2]string{name, said}), max(wide, len(name))
	}
	system := report.GetSystem()
	line("system\t%s", join(system.GetVendor(), system.GetProduct(), named("serial", system.GetSerial()), named("UUID", system.GetUuid())))
	line("chassis\t%s", join(named("serial", system.GetChassisSerial()), named("asset tag", system.GetChassisAssetTag())))
	line("board\t%s", join(system.GetBoardVendor(), system.GetBoardProduct()))
	line("firmware\t%s", join(system.GetFirmwareVendor(), system.GetFirmwareVersion(), system.GetFirmwareDate()))
	line("security\t%s", hardware.Security(system))
	if bmc := report.GetBmc(); bmc != nil {
		line("BMC\t%s", hardware.BMC(bmc))
	}
	line("kernel\t%s", join(system.GetKernel(), system.GetArchitecture()))
	for _, cpu := range report.GetCpus() {
		line("cpu %d\t%s", cpu.GetSocket(), join(cpu.GetVendor(), cpu.GetModel(), fmt.Sprintf("%d cores, %d threads", cpu.GetCores(), cpu.GetThreads()),
			hardware.CoreKinds(cpu), named("microcode", cpu.GetMicrocode())))
	}
	if n := report.GetOfflineThreads(); n > 0 {
		line("offline\t%d threads: %s", n, report.GetOfflineList())
	}
	for _, node := range report.GetNumaNodes() {
		line("node %d\t%s", node.GetNode(), join(named("threads", node.GetCpus()), bytesText(node.GetMemoryBytes())))
	}
	line("memory\t%s usable, %s installed", bytesText(report.GetMemory().GetUsableBytes()), bytesText(report.GetMemory().GetInstalledBytes()))
	for _, module := range report.GetMemory().GetModules() {
		line("module %s\t%s", module.GetLocator(),
			join(bytesText(module.GetSizeBytes()), module.GetType(), hardware.ModuleSpeed(module), module.GetVendor(), module.GetPartNumber()))
	}
	for _, disk := range report.GetBlockDevices() {
		line("disk %s\t%s", disk.GetName(), join(bytesText(disk.GetSizeBytes()), disk.GetProtocol(), disk.GetVendor(), disk.GetModel(),
			named("serial", disk.GetSerial()), named("WWN", disk.GetWwn()), named("firmware", disk.GetFirmware()),
			named("also", strings.Join(disk.GetOtherPaths(), " ")), healthText(disk.GetHealth())))
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
		line("nic %s\t%s", nic.GetName(), join(named(nic.GetKind()+" on", strings.Join(nic.GetLower(), " ")), nic.GetMac(), permanent, nic.GetDriver(),
			named("firmware", nic.GetFirmware()), link, strings.Join(nic.GetAddresses(), " ")))
	}
	for _, device := range report.GetPciDevices() {
		line("pci %s\t%s", device.GetAddress(), join(device.GetKind(), device.GetModel(), device.GetId(), named("subsystem", device.GetSubsystemId()), device.GetDriver()))
	}
	for _, warning := range report.GetWarnings() {
		line("warning\t%s", warning)
	}
	var out []byte
	for _, l := range lines {
		out = fmt.Appendf(out, "%-*s  %s\n", wide, l[0], l[1])
	}
	return out
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
