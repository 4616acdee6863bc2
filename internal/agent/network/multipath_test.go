package network

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// Of a route with several hops the first is carried that is over a carried interface and alive,
// else the first over a carried one.
func TestHop(t *testing.T) {
	t.Parallel()
	hop := func(link, flags int) *netlink.NexthopInfo {
		return &netlink.NexthopInfo{LinkIndex: link, Gw: net.IPv4(10, byte(link), 0, 1), Flags: flags}
	}
	const dead = unix.RTNH_F_DEAD | unix.RTNH_F_LINKDOWN
	for name, test := range map[string]struct {
		hops []*netlink.NexthopInfo
		want string // the link and the gateway; "": it is not carried
	}{
		"both alive":              {[]*netlink.NexthopInfo{hop(1, 0), hop(2, 0)}, "eth1 10.1.0.1"},
		"the first not carried":   {[]*netlink.NexthopInfo{hop(9, 0), hop(2, unix.RTNH_F_ONLINK)}, "eth2 10.2.0.1 on link"},
		"the first dead":          {[]*netlink.NexthopInfo{hop(1, dead), hop(2, 0)}, "eth2 10.2.0.1"},
		"no cable in the first":   {[]*netlink.NexthopInfo{hop(1, unix.RTNH_F_LINKDOWN), hop(2, 0)}, "eth2 10.2.0.1"},
		"one alive, not carried":  {[]*netlink.NexthopInfo{hop(9, 0), hop(1, dead), hop(2, dead)}, "eth1 10.1.0.1"},
		"none carried":            {[]*netlink.NexthopInfo{hop(9, 0), hop(8, 0)}, ""},
		"IPv4 by a gateway of v6": {[]*netlink.NexthopInfo{hop(9, 0), {LinkIndex: 2, Via: &netlink.Via{AddrFamily: netlink.FAMILY_V6, Addr: net.ParseIP("fe80::1")}}}, "eth2 fe80::1"},
	} {
		c := &capture{network: new(agentv1.Network), names: map[int]string{1: "eth1", 2: "eth2"}}
		c.route(netlink.Route{MultiPath: test.hops, Protocol: unix.RTPROT_STATIC, Type: unix.RTN_UNICAST}, false)
		got := ""
		for _, r := range c.network.GetRoutes() {
			got += r.GetLink() + " " + r.GetGateway()
			if r.GetOnLink() {
				got += " on link"
			}
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
		expect(t, name+": warnings", c.warnings)
	}
}

// The kernel says of each hop whether its cable is out.
func TestHopWithoutCable(t *testing.T) {
	t.Parallel()
	near := cable(t)
	out := newLink(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out"}, PeerName: "unplugged"})
	for link, address := range map[netlink.Link]string{near: "192.0.2.7/24", out: "198.51.100.7/24"} {
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: prefixOf(address)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := netlink.RouteAdd(&netlink.Route{Dst: prefix("203.0.113.0/24"), MultiPath: []*netlink.NexthopInfo{
		{LinkIndex: out.Attrs().Index, Gw: net.IPv4(198, 51, 100, 1)}, {LinkIndex: near.Attrs().Index, Gw: net.IPv4(192, 0, 2, 1)},
	}}); err != nil {
		t.Fatal(err)
	}
	c := &capture{network: new(agentv1.Network), names: map[int]string{near.Attrs().Index: "near", out.Attrs().Index: "out"}}
	if err := c.routes(); err != nil {
		t.Fatal(err)
	}
	if routes := c.network.GetRoutes(); len(routes) != 1 || routes[0].GetLink() != "near" || routes[0].GetGateway() != "192.0.2.1" {
		t.Errorf("carried: %v", routes)
	}
}
