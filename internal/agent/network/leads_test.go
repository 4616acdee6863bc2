package network

import (
	"log/slog"
	"net"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// ownNetwork puts the test into a network namespace of its own, with nothing but loopback.
func ownNetwork(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // for ever: the thread ends with the test, and the namespace with it
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		if os.Getenv("CI") == "" {
			t.Skipf("this needs to be root: %v", err)
		}
		t.Fatal(err)
	}
}

// TestLeads asks in a network namespace of its own, which has nothing but loopback at first.
func TestLeads(t *testing.T) {
	t.Parallel()
	ownNetwork(t)
	want := func(when, host string, want bool) {
		t.Helper()
		if got := leads(t.Context(), host); got != want {
			t.Errorf("%s: %s: %t", when, host, got)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	want("no interface is up", "192.0.2.7", false)
	want("no interface is up", "2001:db8::7", false)
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	want("loopback is up", "localhost", true)
	want("loopback is up", "192.0.2.7", false)
	_, network, err := net.ParseCIDR("192.0.2.0/24")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: network}); err != nil {
		t.Fatal(err)
	}
	want("with a route", "192.0.2.7", true)
	want("with a route to others", "198.51.100.7", false)

	// One end of a cable whose other end is down.
	cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far"}
	if err := netlink.LinkAdd(cable); err != nil {
		t.Fatal(err)
	}
	near, err := netlink.LinkByName("near")
	if err == nil {
		err = netlink.LinkSetUp(near)
	}
	if err == nil {
		err = netlink.AddrAdd(near, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(198, 51, 100, 1), Mask: net.CIDRMask(24, 32)}})
	}
	if err != nil {
		t.Fatal(err)
	}
	want("with a route over an interface without carrier", "198.51.100.7", false)
}

// A second way out leads while the interface of the first one has no link.
func TestSecondWay(t *testing.T) {
	t.Parallel()
	ownNetwork(t)
	for name, peer := range map[string]string{"eno1": "far1", "eno2": "far2"} {
		newLink(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: peer})
	}
	if err := netlink.LinkSetUp(named(t, "far2")); err != nil {
		t.Fatal(err)
	}
	a := &applier{log: slog.New(slog.DiscardHandler)}
	for name, addresses := range map[string][]string{"eno1": {"192.0.2.7/24", "2001:db8:1::7/64"}, "eno2": {"198.51.100.7/24", "2001:db8:2::7/64"}} {
		a.remake(&agentv1.NetworkLink{Name: name, Addresses: []*agentv1.NetworkAddress{{Prefix: addresses[0]}, {Prefix: addresses[1]}}})
	}
	if !await(t.Context(), carrierWait, func() bool { return up("eno2") && !up("eno1") }) {
		t.Fatal("the links are not as they should be")
	}
	a.routes([]*agentv1.NetworkRoute{
		{Link: "eno1", Gateway: "192.0.2.1", Metric: 100},
		{Link: "eno2", Gateway: "198.51.100.1", Metric: 200},
		{Link: "eno1", Gateway: "2001:db8:1::1", Metric: 100, Ipv6: true},
		{Link: "eno2", Gateway: "2001:db8:2::1", Metric: 200, Ipv6: true},
	})
	for _, host := range []string{"203.0.113.1", "2001:db8:ffff::1"} {
		if !leads(t.Context(), host) {
			t.Errorf("nothing leads to %s", host)
		}
		if !leadsWithout(t.Context(), host, nil) {
			t.Errorf("nothing leads to %s without a lease", host)
		}
	}
}
