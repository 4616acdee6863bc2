package webui

import (
	"fmt"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// countedText is a text that stands for several equal things.
type countedText struct {
	count int
	text  string
}

// condense counts equal texts, in the order of their first appearance.
func condense(texts []string) []countedText {
	var all []countedText
	at := map[string]int{}
	for _, text := range texts {
		if i, ok := at[text]; ok {
			all[i].count++
			continue
		}
		at[text] = len(all)
		all = append(all, countedText{count: 1, text: text})
	}
	return all
}

func (a countedText) String() string {
	if a.count == 1 {
		return a.text
	}
	return fmt.Sprintf("%d × %s", a.count, a.text)
}

func cpus(all []*agentv1.Cpu) []countedText {
	var texts []string
	for _, c := range all {
		name := c.GetModel()
		if name == "" {
			name = joinNonEmpty(" ", c.GetVendor(), "unnamed")
		}
		texts = append(texts, fmt.Sprintf("%s, %s, %s", name, countOf(int64(c.GetCores()), "core", "cores"), countOf(int64(c.GetThreads()), "thread", "threads")))
	}
	return condense(texts)
}

func modules(m *agentv1.Memory) []countedText {
	var texts []string
	for _, d := range m.GetModules() {
		speed := ""
		if d.GetSpeedMts() > 0 {
			speed = fmt.Sprintf("%d MT/s", d.GetSpeedMts())
		}
		texts = append(texts, joinNonEmpty(" ", binary(d.GetSizeBytes()), d.GetType(), speed, d.GetVendor(), d.GetPartNumber()))
	}
	return condense(texts)
}

func memory(m *agentv1.Memory) string {
	installed, usable := "", ""
	if m.GetInstalledBytes() > 0 {
		installed = binary(m.GetInstalledBytes()) + " installed"
	}
	if m.GetUsableBytes() > 0 {
		usable = binary(m.GetUsableBytes()) + " usable"
	}
	return joinNonEmpty(", ", installed, usable)
}

func diskKind(d *agentv1.BlockDevice) string {
	kind := "solid state"
	if d.GetRotational() {
		kind = "rotational"
	}
	removable, readOnly := "", ""
	if d.GetRemovable() {
		removable = "removable"
	}
	if d.GetReadOnly() {
		readOnly = "read-only"
	}
	return joinNonEmpty(", ", d.GetProtocol(), kind, removable, readOnly)
}

func sectors(d *agentv1.BlockDevice) string {
	if d.GetLogicalSectorBytes() == d.GetPhysicalSectorBytes() {
		return fmt.Sprint(d.GetLogicalSectorBytes())
	}
	return fmt.Sprintf("%d / %d", d.GetLogicalSectorBytes(), d.GetPhysicalSectorBytes())
}

// health tells what a drive says of itself, the worst first.
func health(h *agentv1.Health) string {
	verdict, wear, errors, moved, age, heat := "passed", "", "", "", "", ""
	if !h.GetPassed() {
		verdict = "expects to fail"
	}
	if h.GetMediaErrors() > 0 {
		errors = countOf(h.GetMediaErrors(), "media error", "media errors")
	}
	if h.GetReallocatedSectors() > 0 {
		moved = countOf(h.GetReallocatedSectors(), "reallocated sector", "reallocated sectors")
	}
	if h.GetPercentageUsed() >= 0 {
		wear = fmt.Sprintf("%d %% worn", h.GetPercentageUsed())
	}
	if h.GetPowerOnHours() > 0 {
		age = grouped(h.GetPowerOnHours()) + " h on"
	}
	if h.GetTemperatureCelsius() > 0 {
		heat = fmt.Sprintf("%d °C", h.GetTemperatureCelsius())
	}
	return joinNonEmpty(", ", verdict, errors, moved, wear, age, heat)
}

func speed(n *agentv1.NetworkInterface) string {
	switch mbps := n.GetSpeedMbps(); {
	case mbps <= 0:
		return ""
	case mbps%1000 == 0:
		return fmt.Sprintf("%d Gbit/s", mbps/1000)
	default:
		return fmt.Sprintf("%d Mbit/s", mbps)
	}
}
