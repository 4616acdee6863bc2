package network

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// TestABondThatWatchesByARP is told: in memory it watches its ports' links, which stay up where the
// path behind them is dead.
func TestABondThatWatchesByARP(t *testing.T) {
	t.Parallel()
	near := cable(t)
	attrs := *named(t, "near").Attrs()
	port := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "eth0", Index: 7, MasterIndex: near.Attrs().Index}}
	for interval, warned := range map[int][]string{
		0: nil, 1000: {"the bond near watches its ports by ARP, which is not carried over: it watches their links"},
	} {
		c := hostCapture(t)
		carried, err := c.link(&netlink.Bond{LinkAttrs: attrs, ArpInterval: interval}, map[int]netlink.Link{7: port})
		if err != nil || carried.GetKind() != "bond" {
			t.Errorf("every %d ms: %v, %v", interval, carried, err)
		}
		expect(t, "warnings", c.warnings, warned...)
	}
}
