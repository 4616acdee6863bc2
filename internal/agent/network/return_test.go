package network

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// What was carried over is preferred from when on it leads to the control plane, until the agent is
// admitted. It has one chance, and DHCP is asked again if the agent is not admitted by it.
func TestCarriedComesBack(t *testing.T) {
	t.Parallel()
	answers := map[string]*dhcpv4.DHCPv4{"eth0": acknowledge(t, "192.0.2.7/24", nil)}
	given, back := "eth0 192.0.2.7", []string{"eth0 dropped 192.0.2.7/24", "eth0 restored"}
	for name, test := range map[string]struct {
		carried, admitted time.Duration
		unplugged         bool
		want              []string
	}{
		"it comes late, and the agent is admitted": {carried: 50 * time.Second, admitted: 80 * time.Second, want: slices.Concat([]string{given}, back)},
		"it comes late, and nobody is there":       {carried: 50 * time.Second, want: slices.Concat([]string{given}, back, slices.Repeat([]string{given}, 7))},
		"the agent was admitted by DHCP":           {carried: 50 * time.Second, admitted: 40 * time.Second, want: []string{given}},
		"what DHCP gave has no link any more":      {carried: 50 * time.Second, admitted: 40 * time.Second, unplugged: true, want: slices.Concat([]string{given}, back)},
		"it never leads there":                     {admitted: 40 * time.Second, want: []string{given}},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := &wire{leads: true, unplugged: test.unplugged, carried: test.carried, answers: answers}
			k := w.kept(nil)
			k.links = func(context.Context) []string { return []string{"eth0"} }
			if err := k.seek(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.keep(t, k, 10*time.Minute, test.admitted)
			expect(t, name, w.taken, test.want...)
		})
	}
}

// An address that was carried over for a time, and that DHCP gave again while it was the way out,
// is renewed as before when what was carried over leads to the control plane again.
func TestCarriedLeaseComesBack(t *testing.T) {
	t.Parallel()
	carried := &agentv1.Network{Links: []*agentv1.NetworkLink{
		{Name: "eth0", Addresses: []*agentv1.NetworkAddress{{Prefix: "192.0.2.7/24", LifetimeMs: (10 * time.Hour).Milliseconds()}}},
	}}
	synctest.Test(t, func(t *testing.T) {
		life := dhcpv4.OptIPAddressLeaseTime(4 * time.Hour)
		w := &wire{leads: true, carried: time.Minute, answers: map[string]*dhcpv4.DHCPv4{"eth0": acknowledge(t, "192.0.2.7/24", []dhcpv4.Option{life})}}
		k := w.kept(carried)
		k.links = func(context.Context) []string { return []string{"eth0"} }
		if err := k.seek(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.keep(t, k, 3*time.Hour, 2*time.Minute)
		expect(t, "what was taken", w.taken, "eth0 192.0.2.7", "eth0 dropped 192.0.2.7/24", "eth0 restored")
		expect(t, "what was asked", w.asked, "eth0 had 192.0.2.7/24 after 0s", "eth0 had 192.0.2.7/24 after 2h0m0s")
	})
}

// A lease that an interface had before DHCP was asked for a way out is not taken back with it.
func TestOwnLeaseStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ack := acknowledge(t, "192.0.2.7/24", nil)
		w := &wire{leads: true, carried: time.Minute, answers: map[string]*dhcpv4.DHCPv4{"eth0": ack}}
		k := w.kept(nil)
		k.tenures["eth0"] = until(tenure{address: leased(ack), ack: ack}, ack)
		k.links = func(context.Context) []string { return []string{"eth0"} }
		if err := k.seek(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.keep(t, k, 10*time.Minute, 2*time.Minute)
		expect(t, "what was taken", w.taken, "eth0 192.0.2.7")
		if k.sought != "" || !k.tenures["eth0"].has(leased(ack)) {
			t.Errorf("the way out is over %q, the lease %v", k.sought, k.tenures["eth0"].address)
		}
	})
}

// The kernel has the default route that was carried over again, and nothing of DHCP, after DHCP was
// the way out for as long as the link was down.
func TestDefaultRouteComesBack(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		link, gives, router string
		during              []string
	}{
		"on another interface": {
			"spare", "198.51.100.7/24", "198.51.100.1",
			[]string{"near 192.0.2.7/24", "spare 198.51.100.7/24", "0.0.0.0/0 via 198.51.100.1", "0.0.0.0/0 via 192.0.2.1"},
		},
		"the same address": {
			"near", "192.0.2.7/24", "192.0.2.1",
			[]string{"near 192.0.2.7/24", "0.0.0.0/0 via 192.0.2.1", "0.0.0.0/0 via 192.0.2.1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, k := fallback(t, test.link, test.gives, test.router)
			servers := func(want string) {
				t.Helper()
				if got, err := os.ReadFile(filepath.Join(a.etc, "resolv.conf")); err != nil || string(got) != want {
					t.Errorf("name servers: %q, %v, want %q", got, err, want)
				}
			}

			k.look(t.Context(), false)
			expect(t, "the link is down", inKernel(t), test.during...)
			servers("nameserver " + test.router + "\n")
			k.look(t.Context(), false)
			expect(t, "the link is still down", inKernel(t), test.during...)
			if test.link == "spare" && !k.leads(t.Context()) {
				t.Error("what DHCP gave does not lead out")
			}

			if err := netlink.LinkSetUp(named(t, "far")); err != nil {
				t.Fatal(err)
			}
			a.awaitCarrier(t.Context())
			k.look(t.Context(), false)
			expect(t, "the link is up", inKernel(t), "near 192.0.2.7/24", "0.0.0.0/0 via 192.0.2.1")
			servers("nameserver 192.0.2.1\n")
			if !k.leads(t.Context()) {
				t.Error("what was carried over does not lead out")
			}
		})
	}
}

// fallback makes a network whose link near, with a static address and the default route, is down,
// and a DHCP server that gives the address on one link. The link spare is up.
func fallback(t *testing.T, link, gives, router string) (*applier, *Kept) {
	t.Helper()
	ownNetwork(t)
	newLink(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far"})
	newLink(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "spare"}, PeerName: "other"})
	if err := netlink.LinkSetUp(named(t, "other")); err != nil {
		t.Fatal(err)
	}
	if !await(t.Context(), carrierWait, func() bool { return up("spare") }) {
		t.Fatal("the interface has no link")
	}
	carried := &agentv1.Network{
		Links:      []*agentv1.NetworkLink{{Name: "near", Addresses: []*agentv1.NetworkAddress{{Prefix: "192.0.2.7/24"}}}},
		Routes:     []*agentv1.NetworkRoute{{Link: "near", Gateway: "192.0.2.1"}},
		ResolvConf: []byte("nameserver 192.0.2.1\n"),
	}
	a := &applier{network: carried, log: slog.New(slog.DiscardHandler), etc: t.TempDir()}
	if err := a.link(carried.GetLinks()[0]); err != nil {
		t.Fatal(err)
	}
	a.routes(carried.GetRoutes())
	k := a.kept("203.0.113.7")
	k.links = func(context.Context) []string { return []string{link} }
	ack := acknowledge(t, gives, []dhcpv4.Option{
		dhcpv4.OptRouter(net.ParseIP(router)), dhcpv4.OptDNS(net.ParseIP(router)), dhcpv4.OptIPAddressLeaseTime(time.Hour),
	})
	k.ask = func(context.Context, string, *net.IPNet) (*dhcpv4.DHCPv4, error) { return ack, nil }
	return a, k
}

// A way by which the agent was admitted is left for what was carried over only when it has no link
// any more.
func TestAdmittedWay(t *testing.T) {
	t.Parallel()
	a, k := fallback(t, "spare", "198.51.100.7/24", "198.51.100.1")
	k.look(t.Context(), false)
	if err := netlink.LinkSetUp(named(t, "far")); err != nil {
		t.Fatal(err)
	}
	a.awaitCarrier(t.Context())
	k.look(t.Context(), true)
	expect(t, "both have a link", inKernel(t), "near 192.0.2.7/24", "spare 198.51.100.7/24", "0.0.0.0/0 via 198.51.100.1", "0.0.0.0/0 via 192.0.2.1")
	if err := netlink.LinkSetDown(named(t, "other")); err != nil {
		t.Fatal(err)
	}
	if !await(t.Context(), carrierWait, func() bool { return !up("spare") }) {
		t.Fatal("the interface still has a link")
	}
	k.look(t.Context(), true)
	expect(t, "the way has none", inKernel(t), "near 192.0.2.7/24", "0.0.0.0/0 via 192.0.2.1")
}

// inKernel tells the addresses of the interfaces, and the default routes in their order.
func inKernel(t *testing.T) (text []string) {
	t.Helper()
	for _, name := range []string{"near", "spare"} {
		list, err := netlink.AddrList(named(t, name), netlink.FAMILY_V4)
		if err != nil {
			t.Fatal(err)
		}
		for _, address := range list {
			text = append(text, name+" "+address.IPNet.String())
		}
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		t.Fatal(err)
	}
	for _, route := range routes {
		if prefixLength(route.Dst) == 0 {
			text = append(text, inWords(&route))
		}
	}
	return text
}

// What leads without a lease is found as the kernel would find it.
func TestLeadsWithout(t *testing.T) {
	t.Parallel()
	near := cable(t)
	dead := newLink(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "dead"}, PeerName: "end"})
	for link, address := range map[netlink.Link]string{near: "192.0.2.7/24", dead: "198.51.100.7/24"} {
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: prefixOf(address)}); err != nil {
			t.Fatal(err)
		}
	}
	add := func(link netlink.Link, to string, metric int, protocol netlink.RouteProtocol) {
		t.Helper()
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: prefix(to), Priority: metric, Protocol: protocol, Scope: netlink.SCOPE_LINK}
		if err := netlink.RouteAppend(route); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when, host string, lease *net.IPNet, want bool) {
		t.Helper()
		if got := leadsWithout(t.Context(), host, lease); got != want {
			t.Errorf("%s: %s: %t", when, host, got)
		}
	}
	want("its own network", "192.0.2.99", nil, true)
	want("the network of the lease", "192.0.2.99", prefixOf("192.0.2.7/24"), false)
	want("no route", "203.0.113.7", nil, false)
	want("a network without a link", "198.51.100.99", nil, false)
	add(near, "203.0.113.0/24", 0, unix.RTPROT_DHCP)
	want("a route of the lease", "203.0.113.7", nil, false)
	add(near, "203.0.113.0/24", 200, unix.RTPROT_BOOT)
	want("a route", "203.0.113.7", nil, true)
	add(dead, "203.0.113.0/24", 100, unix.RTPROT_BOOT)
	want("one of a lower metric without a link", "203.0.113.7", nil, true)
	add(dead, "203.0.113.96/28", 300, unix.RTPROT_BOOT)
	want("one to fewer addresses without a link", "203.0.113.99", nil, true)
	want("no default route of IPv6", "2001:db8::1", nil, false)
	if err := addRoute(&agentv1.NetworkRoute{Link: "near", Ipv6: true}); err != nil {
		t.Fatal(err)
	}
	want("a default route of IPv6", "2001:db8::1", nil, true)
}

// An address that its server has given up for another one does not come back with what else was
// carried over, and its routes do not.
func TestForget(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		others []string
		want   []string
	}{
		"the only one":   {nil, nil},
		"one of several": {[]string{"198.51.100.7/24"}, []string{"near 198.51.100.7/24", "0.0.0.0/0 via 198.51.100.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cable(t)
			newLink(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "spare"}, PeerName: "other"})
			carried := &agentv1.Network{
				Links: []*agentv1.NetworkLink{{Name: "near", Addresses: []*agentv1.NetworkAddress{
					{Prefix: "192.0.2.7/24", LifetimeMs: time.Hour.Milliseconds()}, {Prefix: "2001:db8::7/64"},
				}}},
				Routes: []*agentv1.NetworkRoute{{Link: "near", Gateway: "192.0.2.1", Source: "192.0.2.7"}, {Link: "near", Gateway: "192.0.2.2", Metric: 9, OnLink: true}},
			}
			for _, other := range test.others {
				carried.Routes = carried.Routes[:1] // the other one would hold
				carried.Links[0].Addresses = append(carried.Links[0].Addresses, &agentv1.NetworkAddress{Prefix: other})
				carried.Routes = append(carried.Routes, &agentv1.NetworkRoute{Link: "near", Gateway: "198.51.100.1", Metric: 5})
			}
			a := &applier{network: carried, log: slog.New(slog.DiscardHandler), etc: t.TempDir()}
			if err := a.link(carried.GetLinks()[0]); err != nil {
				t.Fatal(err)
			}
			a.routes(carried.GetRoutes())
			k := a.kept("203.0.113.7")
			ack := acknowledge(t, "192.0.2.8/24", []dhcpv4.Option{dhcpv4.OptRouter(net.IPv4(192, 0, 2, 1))})
			k.sought = "near"
			if err := k.settle("near", k.tenures["near"], ack); err != nil {
				t.Fatal(err)
			}
			k.giveBack()
			expect(t, name, inKernel(t), test.want...)
		})
	}
}

// A server that names another router with the same address has the old one taken back.
func TestAnotherRouter(t *testing.T) {
	t.Parallel()
	cable(t)
	newLink(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "spare"}, PeerName: "other"})
	var before tenure
	for _, router := range []net.IP{net.IPv4(192, 0, 2, 1), net.IPv4(192, 0, 2, 2)} {
		ack := acknowledge(t, "192.0.2.7/24", []dhcpv4.Option{dhcpv4.OptRouter(router)})
		if err := take("near", before, ack); err != nil {
			t.Fatal(err)
		}
		before = tenure{address: leased(ack), ack: ack}
	}
	expect(t, "the routes", inKernel(t), "near 192.0.2.7/24", "0.0.0.0/0 via 192.0.2.2")
}

// The way that DHCP makes comes before a default route that leads nowhere, also on an interface
// whose own default route, which was carried over, came behind that.
func TestWayComesFirst(t *testing.T) {
	t.Parallel()
	a, k := fallback(t, "spare", "198.51.100.7/24", "198.51.100.1")
	a.network.Links = append(a.network.Links, &agentv1.NetworkLink{
		Name: "spare", Addresses: []*agentv1.NetworkAddress{{Prefix: "198.51.100.7/24", LifetimeMs: time.Hour.Milliseconds()}},
	})
	a.network.Routes = append(a.network.Routes, &agentv1.NetworkRoute{Link: "spare", Gateway: "198.51.100.1", Metric: 100})
	a.restore("spare")
	k.tenures = carriedTenures(a.network, time.Now())
	if err := netlink.LinkSetUp(named(t, "far")); err != nil { // and yet nothing answers there
		t.Fatal(err)
	}
	k.returned = true // what was carried over has had its chance
	k.look(t.Context(), false)
	expect(t, "what DHCP gave", inKernel(t), "near 192.0.2.7/24", "spare 198.51.100.7/24",
		"0.0.0.0/0 via 198.51.100.1", "0.0.0.0/0 via 192.0.2.1", "0.0.0.0/0 via 198.51.100.1")
	k.giveBack()
	expect(t, "given back", inKernel(t), "near 192.0.2.7/24", "spare 198.51.100.7/24", "0.0.0.0/0 via 192.0.2.1", "0.0.0.0/0 via 198.51.100.1")
	if got := k.tenures["spare"]; got.metric != 100 || got.ack != nil {
		t.Errorf("the lease that was carried over is %+v", got)
	}
}
