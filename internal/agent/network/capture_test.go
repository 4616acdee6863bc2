package network

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// The members of a bond all have its address. Each is told by its own, which older kernels do not
// tell by netlink.
func TestOwnAddress(t *testing.T) {
	t.Parallel()
	sys := t.TempDir()
	for name, text := range map[string]string{"eth0": "02:00:00:00:00:0a\n", "odd": "none\n"} {
		path := filepath.Join(sys, name, "bonding_slave/perm_hwaddr")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	shared, own := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 0xb}
	for name, test := range map[string]struct {
		attrs netlink.LinkAttrs
		want  string
	}{
		"alone":                 {netlink.LinkAttrs{Name: "eth2", HardwareAddr: shared, PermHWAddr: own}, "02:00:00:00:00:01"},
		"in a bond":             {netlink.LinkAttrs{Name: "eth0", HardwareAddr: shared, PermHWAddr: own, MasterIndex: 7}, "02:00:00:00:00:0b"},
		"in a bond, before 5.6": {netlink.LinkAttrs{Name: "eth0", HardwareAddr: shared, MasterIndex: 7}, "02:00:00:00:00:0a"},
		"in a bridge":           {netlink.LinkAttrs{Name: "eth1", HardwareAddr: shared, MasterIndex: 8}, "02:00:00:00:00:01"},
		"not an address":        {netlink.LinkAttrs{Name: "odd", HardwareAddr: shared, MasterIndex: 7}, "02:00:00:00:00:01"},
	} {
		if got := ownAddress(sys, &test.attrs); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// The rules that the kernel has by itself are not told; those of an operator are, of both families.
func TestRules(t *testing.T) {
	t.Parallel()
	ownNetwork(t)
	want := func(want ...string) {
		t.Helper()
		c := new(capture)
		c.rules()
		if !slices.Equal(c.warnings, want) {
			t.Errorf("warnings: %q, want %q", c.warnings, want)
		}
	}
	want()
	add := func(family int) {
		t.Helper()
		rule := netlink.NewRule()
		rule.Family, rule.Table, rule.Mark = family, 100, 1
		if err := netlink.RuleAdd(rule); err != nil {
			t.Fatal(err)
		}
	}
	add(netlink.FAMILY_V6)
	want("1 rules of policy routing (IPv6) are not carried over")
	add(netlink.FAMILY_V4)
	want("1 rules of policy routing (IPv4) are not carried over", "1 rules of policy routing (IPv6) are not carried over")
}
