package inventory

import (
	"fmt"
	"strings"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
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
	line("security\t%s", join(secureBootText(system.GetSecureBoot()), named("TPM", system.GetTpmVersion())))
	if bmc := report.GetBmc(); bmc != nil {
		line("BMC\t%s", join(named("address", strings.TrimSpace(bmc.GetAddress()+" "+strings.Join(bmc.GetIpv6Addresses(), " "))),
			named("MAC", bmc.GetMac()), named("IPMI", bmc.GetIpmiVersion()), named("firmware", bmc.GetFirmwareVersion()),
			named("maker", bmc.GetManufacturerId()), named("product", bmc.GetProductId())))
	}
	line("kernel\t%s", join(system.GetKernel(), system.GetArchitecture()))
	for _, cpu := range report.GetCpus() {
		line("cpu %d\t%s", cpu.GetSocket(), join(cpu.GetVendor(), cpu.GetModel(), fmt.Sprintf("%d cores, %d threads", cpu.GetCores(), cpu.GetThreads()),
			kindsText(cpu.GetCoreKinds()), named("microcode", cpu.GetMicrocode())))
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
			join(bytesText(module.GetSizeBytes()), module.GetType(), speedText(module), module.GetVendor(), module.GetPartNumber()))
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
		if nic.GetSpeedMbps() > 0 {
			link = fmt.Sprintf("link %d Mbit/s", nic.GetSpeedMbps())
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

// kindsText shows of what cores a processor is made, if they differ.
func kindsText(kinds []*agentv1.CoreKind) string {
	words := make([]string, len(kinds))
	for i, kind := range kinds {
		words[i] = fmt.Sprintf("%d × %s", kind.GetCores(), kind.GetName())
	}
	return strings.Join(words, " + ")
}

func secureBootText(state agentv1.SecureBoot) string {
	switch state {
	case agentv1.SecureBoot_SECURE_BOOT_ENABLED:
		return "Secure Boot"
	case agentv1.SecureBoot_SECURE_BOOT_DISABLED:
		return "no Secure Boot"
	}
	return ""
}

// speedText shows at what speed a module runs, and what it could do if that is more.
func speedText(module *agentv1.MemoryModule) string {
	can, does := module.GetSpeedMts(), module.GetConfiguredSpeedMts()
	switch {
	case does > 0 && can > does:
		return fmt.Sprintf("%d of %d MT/s", does, can)
	case does > 0 || can > 0:
		return fmt.Sprintf("%d MT/s", max(does, can))
	}
	return ""
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
