package webui

import (
	"fmt"
	"strings"

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
		texts = append(texts, joinNonEmpty(", ", name, countOf(int64(c.GetCores()), "core", "cores"),
			countOf(int64(c.GetThreads()), "thread", "threads"), coreKinds(c), labelled("microcode", c.GetMicrocode())))
	}
	return condense(texts)
}

// coreKinds tells of what cores a processor is made, if they differ.
func coreKinds(c *agentv1.Cpu) string {
	var kinds []string
	for _, k := range c.GetCoreKinds() {
		kinds = append(kinds, fmt.Sprintf("%d × %s", k.GetCores(), k.GetName()))
	}
	return strings.Join(kinds, " + ")
}

func modules(m *agentv1.Memory) []countedText {
	var texts []string
	for _, d := range m.GetModules() {
		texts = append(texts, joinNonEmpty(" ", binary(d.GetSizeBytes()), d.GetType(), moduleSpeed(d), d.GetVendor(), d.GetPartNumber()))
	}
	return condense(texts)
}

// moduleSpeed tells at what speed a module runs, and what it could do if that is more.
func moduleSpeed(d *agentv1.MemoryModule) string {
	can, does := d.GetSpeedMts(), d.GetConfiguredSpeedMts()
	switch {
	case does > 0 && can > does:
		return fmt.Sprintf("%d of %d MT/s", does, can)
	case does > 0 || can > 0:
		return fmt.Sprintf("%d MT/s", max(does, can))
	}
	return ""
}

// labelled puts a label before a value that is there.
func labelled(label, value string) string {
	if value == "" {
		return ""
	}
	return label + " " + value
}

func security(s *agentv1.System) string {
	boot := map[agentv1.SecureBoot]string{
		agentv1.SecureBoot_SECURE_BOOT_ENABLED: "Secure Boot on", agentv1.SecureBoot_SECURE_BOOT_DISABLED: "Secure Boot off",
	}
	return joinNonEmpty(", ", boot[s.GetSecureBoot()], labelled("TPM", s.GetTpmVersion()))
}

func bmc(b *agentv1.Bmc) string {
	addresses := joinNonEmpty(" ", append([]string{b.GetAddress()}, b.GetIpv6Addresses()...)...)
	return joinNonEmpty(", ", "present", labelled("address", addresses), labelled("MAC", b.GetMac()), labelled("IPMI", b.GetIpmiVersion()), labelled("firmware", b.GetFirmwareVersion()),
		labelled("maker", b.GetManufacturerId()), labelled("product", b.GetProductId()))
}

func numaNode(n *agentv1.NumaNode) string {
	return fmt.Sprintf("%d: %s", n.GetNode(), joinNonEmpty(", ", labelled("threads", n.GetCpus()), binary(n.GetMemoryBytes())))
}

// driver names what drives an interface, or what a virtual one is and stands on.
func driver(n *agentv1.NetworkInterface) string {
	if n.GetKind() == "" {
		return n.GetDriver()
	}
	return n.GetKind() + " on " + strings.Join(n.GetLower(), " ")
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
