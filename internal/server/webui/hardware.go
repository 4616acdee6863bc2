package webui

import (
	"fmt"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/hardware"
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
		texts = append(texts, joinNonEmpty(", ", name, countOf(int64(c.GetCores()), "core", "cores"),
			countOf(int64(c.GetThreads()), "thread", "threads"), hardware.CoreKinds(c), labelled("microcode", c.GetMicrocode())))
	}
	return condense(texts)
}

func modules(m *agentv1.Memory) []countedText {
	var texts []string
	for _, d := range m.GetModules() {
		texts = append(texts, joinNonEmpty(" ", binary(d.GetSizeBytes()), d.GetType(), hardware.ModuleSpeed(d), d.GetVendor(), d.GetPartNumber()))
	}
	return condense(texts)
}

// labelled puts a label before a value that is there.
func labelled(label, value string) string {
	if value == "" {
		return ""
	}
	return label + " " + value
}

func numaNode(n *agentv1.NumaNode) string {
	return fmt.Sprintf("%d: %s", n.GetNode(), joinNonEmpty(", ", labelled("threads", n.GetCpus()), binary(n.GetMemoryBytes())))
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
	verdict, wear, errors, pending, unreadable, moved, age, heat := "passed", "", "", "", "", "", "", ""
	if !h.GetPassed() {
		verdict = "expects to fail"
	}
	if h.GetMediaErrors() > 0 {
		errors = countOf(h.GetMediaErrors(), "media error", "media errors")
	}
	if h.GetPendingSectors() > 0 {
		pending = countOf(h.GetPendingSectors(), "pending sector", "pending sectors")
	}
	if h.GetOfflineUncorrectableSectors() > 0 {
		unreadable = countOf(h.GetOfflineUncorrectableSectors(), "unreadable sector", "unreadable sectors")
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
	return joinNonEmpty(", ", verdict, pending, unreadable, errors, moved, wear, age, heat)
}

// isBad tells of a drive that expects to fail, or that has lost data already.
func isBad(h *agentv1.Health) bool {
	return h != nil && (!h.GetPassed() || h.GetPendingSectors() > 0 || h.GetOfflineUncorrectableSectors() > 0)
}
