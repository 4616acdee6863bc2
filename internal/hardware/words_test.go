package hardware

import (
	"fmt"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// TestWhatIsNotKnownIsLeftOut: an agent tells what it could read, and nothing is made of the rest.
func TestWhatIsNotKnownIsLeftOut(t *testing.T) {
	t.Parallel()
	size := func(n int64) string { return fmt.Sprintf("%d B", n) }
	for name, test := range map[string]struct{ got, want string }{
		"no memory":           {Memory(&agentv1.Memory{}, size), ""},
		"usable memory":       {Memory(&agentv1.Memory{UsableBytes: 7}, size), "7 B usable"},
		"memory":              {Memory(&agentv1.Memory{InstalledBytes: 8, UsableBytes: 7}, size), "8 B installed, 7 B usable"},
		"no BMC":              {BMC(nil), ""},
		"a BMC":               {BMC(&agentv1.Bmc{Address: "192.0.2.1", Ipv6Addresses: []string{"2001:db8::1"}, ManufacturerId: "m"}), "present, address 192.0.2.1 2001:db8::1, maker m"},
		"no security":         {Security(&agentv1.System{}), ""},
		"security":            {Security(&agentv1.System{SecureBoot: agentv1.SecureBoot_SECURE_BOOT_DISABLED, TpmVersion: "2.0"}), "Secure Boot off, TPM 2.0"},
		"one kind of cores":   {CoreKinds(&agentv1.Cpu{}), ""},
		"two kinds of cores":  {CoreKinds(&agentv1.Cpu{CoreKinds: []*agentv1.CoreKind{{Cores: 6, Name: "P"}, {Cores: 8, Name: "E"}}}), "6 × P + 8 × E"},
		"no speed":            {ModuleSpeed(&agentv1.MemoryModule{}), ""},
		"a slower module":     {ModuleSpeed(&agentv1.MemoryModule{SpeedMts: 3200, ConfiguredSpeedMts: 2933}), "2933 of 3200 MT/s"},
		"a module":            {ModuleSpeed(&agentv1.MemoryModule{SpeedMts: 3200}), "3200 MT/s"},
		"an interface":        {Driver(&agentv1.NetworkInterface{Driver: "ixgbe"}), "ixgbe"},
		"a virtual interface": {Driver(&agentv1.NetworkInterface{Kind: "vlan", Lower: []string{"eno1"}}), "vlan on eno1"},
		"no link speed":       {LinkSpeed(&agentv1.NetworkInterface{}), ""},
		"2.5 Gbit/s":          {LinkSpeed(&agentv1.NetworkInterface{SpeedMbps: 2500}), "2500 Mbit/s"},
		"25 Gbit/s":           {LinkSpeed(&agentv1.NetworkInterface{SpeedMbps: 25000}), "25 Gbit/s"},
	} {
		if test.got != test.want {
			t.Errorf("%s: %q, want %q", name, test.got, test.want)
		}
	}
}
