package inventory

import (
	"bytes"
	"fmt"
	"strings"
	"text/tabwriter"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// Text returns a report for people to read.
func Text(report *agentv1.HardwareReport) []byte {
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	system := report.GetSystem()
	line("system\t%s", join(system.GetVendor(), system.GetProduct(), named("serial", system.GetSerial()), named("UUID", system.GetUuid())))
	line("board\t%s", join(system.GetBoardVendor(), system.GetBoardProduct()))
	line("firmware\t%s", join(system.GetFirmwareVendor(), system.GetFirmwareVersion(), system.GetFirmwareDate()))
	line("kernel\t%s", join(system.GetKernel(), system.GetArchitecture()))
	for _, cpu := range report.GetCpus() {
		line("cpu %d\t%s, %d cores, %d threads", cpu.GetSocket(), join(cpu.GetVendor(), cpu.GetModel()), cpu.GetCores(), cpu.GetThreads())
	}
	line("memory\t%s usable, %s installed", bytesText(report.GetMemory().GetUsableBytes()), bytesText(report.GetMemory().GetInstalledBytes()))
	for _, module := range report.GetMemory().GetModules() {
		line("module %s\t%s", module.GetLocator(),
			join(bytesText(module.GetSizeBytes()), module.GetType(), module.GetVendor(), module.GetPartNumber()))
	}
	for _, disk := range report.GetBlockDevices() {
		line("disk %s\t%s", disk.GetName(), join(bytesText(disk.GetSizeBytes()), disk.GetProtocol(), disk.GetVendor(), disk.GetModel(),
			named("serial", disk.GetSerial()), named("WWN", disk.GetWwn())))
	}
	for _, nic := range report.GetNetworkInterfaces() {
		link := "no link"
		if nic.GetLink() {
			link = "link"
		}
		line("nic %s\t%s", nic.GetName(), join(nic.GetMac(), nic.GetDriver(), link, strings.Join(nic.GetAddresses(), " ")))
	}
	for _, warning := range report.GetWarnings() {
		line("warning\t%s", warning)
	}
	_ = w.Flush() // into memory
	return out.Bytes()
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
