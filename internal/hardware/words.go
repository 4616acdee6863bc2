// Package hardware tells what is in a hardware report in words, so that everything that shows one
// to people says the same. What is not known is left out; where nothing is known, the text is
// empty. It also knows what in a report changes by itself, for whoever compares two of them.
package hardware

import (
	"fmt"
	"strings"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// Security is whether Secure Boot is on, and which TPM there is.
func Security(s *agentv1.System) string {
	boot := map[agentv1.SecureBoot]string{
		agentv1.SecureBoot_SECURE_BOOT_ENABLED: "Secure Boot on", agentv1.SecureBoot_SECURE_BOOT_DISABLED: "Secure Boot off",
	}
	return join(boot[s.GetSecureBoot()], labelled("TPM", s.GetTpmVersion()))
}

// BMC is where the management controller is, and what it is.
func BMC(b *agentv1.Bmc) string {
	if b == nil {
		return ""
	}
	addresses := strings.TrimSpace(b.GetAddress() + " " + strings.Join(b.GetIpv6Addresses(), " "))
	return join("present", labelled("address", addresses), labelled("MAC", b.GetMac()), labelled("IPMI", b.GetIpmiVersion()),
		labelled("firmware", b.GetFirmwareVersion()), labelled("maker", b.GetManufacturerId()), labelled("product", b.GetProductId()))
}

// CoreKinds is of what cores a processor is made, if they differ.
func CoreKinds(c *agentv1.Cpu) string {
	kinds := make([]string, len(c.GetCoreKinds()))
	for i, k := range c.GetCoreKinds() {
		kinds[i] = fmt.Sprintf("%d × %s", k.GetCores(), k.GetName())
	}
	return strings.Join(kinds, " + ")
}

// Memory is how much there is. size writes a number of bytes.
func Memory(m *agentv1.Memory, size func(bytes int64) string) string {
	installed, usable := "", ""
	if m.GetInstalledBytes() > 0 {
		installed = size(m.GetInstalledBytes()) + " installed"
	}
	if m.GetUsableBytes() > 0 {
		usable = size(m.GetUsableBytes()) + " usable"
	}
	return join(installed, usable)
}

// ModuleSpeed is at what speed a memory module runs, and what it could do if that is more.
func ModuleSpeed(m *agentv1.MemoryModule) string {
	can, does := m.GetSpeedMts(), m.GetConfiguredSpeedMts()
	switch {
	case does > 0 && can > does:
		return fmt.Sprintf("%d of %d MT/s", does, can)
	case does > 0 || can > 0:
		return fmt.Sprintf("%d MT/s", max(does, can))
	}
	return ""
}

// Driver is what drives an interface, or what a virtual one is and stands on.
func Driver(n *agentv1.NetworkInterface) string {
	if n.GetKind() == "" {
		return n.GetDriver()
	}
	return n.GetKind() + " on " + strings.Join(n.GetLower(), " ")
}

// LinkSpeed is the speed of an interface.
func LinkSpeed(n *agentv1.NetworkInterface) string {
	switch mbps := n.GetSpeedMbps(); {
	case mbps <= 0:
		return ""
	case mbps%1000 == 0:
		return fmt.Sprintf("%d Gbit/s", mbps/1000)
	default:
		return fmt.Sprintf("%d Mbit/s", mbps)
	}
}

// labelled puts a label before a value that is there.
func labelled(label, value string) string {
	if value == "" {
		return ""
	}
	return label + " " + value
}

// join puts the parts that are there into one line.
func join(parts ...string) string {
	var kept []string
	for _, part := range parts {
		if part != "" {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, ", ")
}
