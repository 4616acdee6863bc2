package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// An interface that stands on one without a link is waited for: the kernel calls it lower layer
// down, not down. It carries no address out until the link is there.
func TestLowerLayerDown(t *testing.T) {
	t.Parallel()
	ownNetwork(t)
	near := newLink(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far"})
	upper := newLink(t, &netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "upper", ParentIndex: near.Attrs().Index}, Mode: netlink.MACVLAN_MODE_BRIDGE})
	far := named(t, "far")
	var log bytes.Buffer
	a := &applier{
		log: slog.New(slog.NewTextHandler(&log, nil)),
		network: &agentv1.Network{Links: []*agentv1.NetworkLink{
			{Name: "near"}, {Name: "upper", Kind: "vlan", Addresses: []*agentv1.NetworkAddress{{Prefix: "192.0.2.7/24"}}},
		}},
	}
	if err := addAddress(upper, a.network.GetLinks()[1].GetAddresses()[0]); err != nil {
		t.Fatal(err)
	}
	if state := named(t, "upper").Attrs().OperState; state != netlink.OperLowerLayerDown {
		t.Fatalf("the interface is %s: this test shows nothing", state)
	}
	if a.reachable() {
		t.Error("an address counts whose interface stands on one without a link")
	}
	ended, end := context.WithCancel(t.Context())
	end()
	a.awaitCarrier(ended)
	if !strings.Contains(log.String(), "link=upper") {
		t.Errorf("the interface is not waited for: %q", log.String())
	}

	log.Reset()
	if err := netlink.LinkSetUp(far); err != nil {
		t.Fatal(err)
	}
	a.awaitCarrier(t.Context())
	if log.Len() > 0 || !a.reachable() {
		t.Errorf("with a link it is waited for (%q), or is not reachable", log.String())
	}
}

// newLink makes an interface and brings it up.
func newLink(t *testing.T, made netlink.Link) netlink.Link {
	t.Helper()
	if err := netlink.LinkAdd(made); err != nil {
		t.Fatal(err)
	}
	found := named(t, made.Attrs().Name)
	if err := netlink.LinkSetUp(found); err != nil {
		t.Fatal(err)
	}
	return found
}

func named(t *testing.T, name string) netlink.Link {
	t.Helper()
	found, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// asked returns the interface that the kernel is asked for, as the netlink package reads it.
func asked(t *testing.T, want *agentv1.NetworkLink, parent int) netlink.Link {
	t.Helper()
	message := creation(want, parent).Serialize()[unix.NLMSG_HDRLEN:]
	link, err := netlink.LinkDeserialize(nil, message)
	if err != nil {
		t.Fatal(err)
	}
	return link
}

// Virtual interfaces are asked for as the old system had them, whatever kinds this kernel knows.
func TestCreation(t *testing.T) {
	t.Parallel()
	const mac = "02:00:00:00:00:07"
	for name, test := range map[string]struct {
		has                *agentv1.Bond
		mode               netlink.BondMode
		miimon, rate, hash int // 0: that of the kernel
	}{
		"LACP":          {&agentv1.Bond{Mode: 4, MiimonMs: 250, LacpRate: 1, XmitHashPolicy: 1}, netlink.BOND_MODE_802_3AD, 250, 1, 1},
		"balance-xor":   {&agentv1.Bond{Mode: 2, LacpRate: 1, XmitHashPolicy: 3}, netlink.BOND_MODE_BALANCE_XOR, 100, 0, 3},
		"active-backup": {&agentv1.Bond{Mode: 1, LacpRate: 1, XmitHashPolicy: 1}, netlink.BOND_MODE_ACTIVE_BACKUP, 100, 0, 0},
	} {
		made, ok := asked(t, &agentv1.NetworkLink{Name: "bond0", Kind: "bond", Mac: mac, Bond: test.has}, 0).(*netlink.Bond)
		if !ok || made.Name != "bond0" || made.HardwareAddr.String() != mac || made.Mode != test.mode || made.Miimon != test.miimon ||
			max(0, int(made.LacpRate)) != test.rate || max(0, int(made.XmitHashPolicy)) != test.hash {
			t.Errorf("%s: %+v", name, made)
		}
	}
	ownNetwork(t)
	if err := netlink.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}); err != nil {
		t.Fatal(err)
	}
	bridge := &agentv1.NetworkLink{Name: "lan", Kind: "bridge", Mac: mac, Lower: []string{"eth0"}}
	for range 2 { // it may be there already
		made, err := new(applier).make(bridge)
		if err != nil {
			t.Fatal(err)
		}
		if made.Type() != "bridge" || made.Attrs().HardwareAddr.String() != mac || named(t, "eth0").Attrs().MasterIndex != made.Attrs().Index {
			t.Errorf("made: %+v", made)
		}
	}
}

// An interface is found by the address that it has, and by the one that it was made with. The
// latter alone tells it where the address that the old system had set is still in the hardware.
func TestMatch(t *testing.T) {
	t.Parallel()
	device := func(name string, last, own byte) netlink.Link {
		attrs := netlink.LinkAttrs{Name: name, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, last}}
		if own > 0 {
			attrs.PermHWAddr = net.HardwareAddr{2, 0, 0, 0, 0, own}
		}
		return &netlink.Device{LinkAttrs: attrs}
	}
	for name, test := range map[string]struct {
		present []netlink.Link
		mac     string
		want    string
	}{
		"as it was":                        {[]netlink.Link{device("a", 1, 1), device("b", 2, 2)}, "02:00:00:00:00:02", "b"},
		"an old driver":                    {[]netlink.Link{device("a", 1, 0), device("b", 2, 0)}, "02:00:00:00:00:02", "b"},
		"set, and still so":                {[]netlink.Link{device("a", 1, 1), device("b", 9, 2)}, "02:00:00:00:00:02", "b"},
		"set to that of another":           {[]netlink.Link{device("a", 2, 1), device("b", 2, 2)}, "02:00:00:00:00:02", "b"},
		"all made with one, as one has it": {[]netlink.Link{device("a", 3, 2), device("b", 2, 2)}, "02:00:00:00:00:02", "b"},
		"that of another, by hand":         {[]netlink.Link{device("a", 3, 2), device("b", 2, 0)}, "02:00:00:00:00:02", "b"},
		"all made with one":                {[]netlink.Link{device("a", 2, 2), device("b", 3, 2)}, "02:00:00:00:00:03", "b"},
		"not there":                        {[]netlink.Link{device("a", 1, 1)}, "02:00:00:00:00:02", ""},
		"no address":                       {[]netlink.Link{device("a", 1, 0)}, "", ""},
	} {
		got := ""
		if link := match(test.present, test.mac); link != nil {
			got = link.Attrs().Name
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// Interfaces get the names of the old system, those of one another, too. One that the old system
// did not have gives its name away.
func TestRename(t *testing.T) {
	t.Parallel()
	ownNetwork(t)
	var present []netlink.Link
	for i, name := range []string{"eth0", "eth1", "eth2", "eth3"} {
		attrs := netlink.LinkAttrs{Name: name, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, byte(i)}}
		if err := netlink.LinkAdd(&netlink.Ifb{LinkAttrs: attrs}); err != nil {
			t.Fatal(err)
		}
		present = append(present, named(t, name))
	}
	present[1].Attrs().HardwareAddr, present[1].Attrs().PermHWAddr = net.HardwareAddr{2, 0, 0, 0, 0, 99}, net.HardwareAddr{2, 0, 0, 0, 0, 1}
	a := &applier{log: slog.New(slog.DiscardHandler), network: &agentv1.Network{Links: []*agentv1.NetworkLink{
		{Name: "eth1", Mac: "02:00:00:00:00:00"},
		{Name: "eth0", Mac: "02:00:00:00:00:01"},
		{Name: "eth2", Mac: "02:00:00:00:00:02"},
		{Name: "eth3", Mac: "02:00:00:00:00:77"},
		{Name: "lan", Kind: "bridge", Mac: "02:00:00:00:00:03"},
	}}}
	a.rename(present)
	var got []string
	for _, link := range present {
		now, err := netlink.LinkByIndex(link.Attrs().Index)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, now.Attrs().Name)
	}
	expect(t, "names", got, "eth1", "eth0", "eth2", fmt.Sprintf("old%d", present[3].Attrs().Index))
}

// Two interfaces of one MAC address each have a name: what was on the first is made on it. One that
// is a part of another is none of the old system's, wherever the kernel lists it, and gives its
// name away.
func TestRenameOfTwins(t *testing.T) {
	t.Parallel()
	ownNetwork(t)
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for _, made := range []netlink.Link{
		&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "eth0", HardwareAddr: mac}}, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "b", HardwareAddr: mac}},
		&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "c", HardwareAddr: mac}},
	} {
		if err := netlink.LinkAdd(made); err != nil {
			t.Fatal(err)
		}
	}
	if err := netlink.LinkSetMaster(named(t, "eth0"), named(t, "b")); err != nil {
		t.Fatal(err)
	}
	present := []netlink.Link{named(t, "eth0"), named(t, "b"), named(t, "c")}
	links := []*agentv1.NetworkLink{{Name: "eth0", Mac: mac.String()}, {Name: "eth1", Mac: mac.String()}, {Name: "eth2", Mac: mac.String()}}
	a := &applier{log: slog.New(slog.DiscardHandler), network: &agentv1.Network{Links: links}}
	a.rename(present)
	var got []string
	for _, link := range present {
		now, err := netlink.LinkByIndex(link.Attrs().Index)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, now.Attrs().Name)
	}
	expect(t, "names", got, fmt.Sprintf("old%d", present[0].Attrs().Index), "eth0", "eth1")
}

// An interface whose MAC address was set by hand has it before it comes up: some drivers refuse it
// then. One that cannot be given it comes up with its own, and it is told.
func TestSetMac(t *testing.T) {
	t.Parallel()
	ownNetwork(t)
	const own, set = "02:00:00:00:00:01", "02:00:00:00:00:07"
	changes := make(chan netlink.LinkUpdate, 100)
	if err := netlink.LinkSubscribe(changes, t.Context().Done()); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ set, mac string }{
		"hand": {set, set}, "own": {"", own}, "multicast": {"01:00:5e:00:00:07", own}, "odd": {"none", own},
	} {
		attrs := netlink.LinkAttrs{Name: name, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "to-" + name}); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		a := &applier{log: slog.New(slog.NewTextHandler(&log, nil))}
		want := &agentv1.NetworkLink{Name: name, Mac: own, SetMac: test.set, Addresses: []*agentv1.NetworkAddress{{Prefix: "192.0.2.7/24"}}}
		if err := a.link(want); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for change := range changes {
			if now := change.Attrs(); now.Name == name && now.Flags&net.FlagUp != 0 {
				if got := now.HardwareAddr.String(); got != test.mac {
					t.Errorf("%s comes up with the address %s, want %s", name, got, test.mac)
				}
				break
			}
		}
		refused := test.set != "" && test.set != test.mac
		if told := strings.Count(log.String(), "\n"); refused != (told == 1) || refused && !strings.Contains(log.String(), "keeps its own MAC address") {
			t.Errorf("%s: told: %q", name, log.String())
		}
	}
}

// An interface gets its MTU, and a bridge its members.
func TestMtuAndMembers(t *testing.T) {
	t.Parallel()
	ownNetwork(t)
	newLink(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far"})
	newLink(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wide"}, PeerName: "end"})
	a := &applier{log: slog.New(slog.DiscardHandler)}
	for _, want := range []*agentv1.NetworkLink{
		{Name: "near", Mtu: 1400},
		{Name: "br0", Kind: "bridge", Mtu: 1300, Lower: []string{"near", "vnet0"}},
		{Name: "wide", Mtu: 9000},
		{Name: "br1", Kind: "bridge", Mtu: 1500, Lower: []string{"wide"}}, // the MTU that it is made with
	} {
		if err := a.link(want); err != nil {
			t.Fatal(err)
		}
	}
	near, bridge := named(t, "near").Attrs(), named(t, "br0").Attrs()
	if near.MTU != 1400 || bridge.MTU != 1300 || near.MasterIndex != bridge.Index {
		t.Errorf("MTU %d and %d, in %d, want %d", near.MTU, bridge.MTU, near.MasterIndex, bridge.Index)
	}
	if got := named(t, "br1").Attrs().MTU; got != 1500 {
		t.Errorf("a bridge has the MTU %d of its member", got)
	}
}

// An interface that becomes a member of a bridge keeps what it has.
func TestAddressesOfAMember(t *testing.T) {
	t.Parallel()
	ownNetwork(t)
	near := newLink(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far"})
	a := &applier{log: slog.New(slog.DiscardHandler)}
	for _, want := range []*agentv1.NetworkLink{
		{Name: "near", Addresses: []*agentv1.NetworkAddress{{Prefix: "192.0.2.7/24"}, {Prefix: "2001:db8::7/64"}}},
		{Name: "br0", Kind: "bridge", Lower: []string{"near"}},
	} {
		if err := a.link(want); err != nil {
			t.Fatal(err)
		}
	}
	list, err := netlink.AddrList(near, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, address := range list {
		if address.Scope == int(netlink.SCOPE_UNIVERSE) {
			got = append(got, address.IPNet.String())
		}
	}
	expect(t, "addresses", got, "192.0.2.7/24", "2001:db8::7/64")
}

// A member that cannot join costs its master neither its other members nor its addresses.
func TestMemberThatCannotJoin(t *testing.T) {
	t.Parallel()
	ownNetwork(t)
	newLink(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far"})
	var log bytes.Buffer
	a := &applier{log: slog.New(slog.NewTextHandler(&log, nil))}
	refused := "lo" // no bridge takes it
	a.remake(&agentv1.NetworkLink{
		Name: "br0", Kind: "bridge", Lower: []string{refused, "near"}, Addresses: []*agentv1.NetworkAddress{{Prefix: "192.0.2.7/24"}},
	})
	bridge := named(t, "br0")
	list, err := netlink.AddrList(bridge, netlink.FAMILY_V4)
	if err != nil || len(list) != 1 || bridge.Attrs().Flags&net.FlagUp == 0 || named(t, "near").Attrs().MasterIndex != bridge.Attrs().Index {
		t.Errorf("the bridge: %v, addresses %v, %v", bridge.Attrs().Flags, list, err)
	}
	if !strings.Contains(log.String(), "add lo to it: ") {
		t.Errorf("told: %q", log.String())
	}
	if err := a.link(&agentv1.NetworkLink{Name: "br1", Kind: "bridge", Lower: []string{refused}}); err == nil {
		t.Error("a bridge that no member has joined is as it was")
	}
}

// Two default routes of one metric, as DHCP gives them on two interfaces, are both there, in their
// order: the first one counts. Nothing changes when they are made again.
func TestRoutesOfOneMetric(t *testing.T) {
	t.Parallel()
	ownNetwork(t)
	want := []string{"near 192.0.2.7/24", "spare 198.51.100.7/24", "0.0.0.0/0 via 192.0.2.1", "0.0.0.0/0 via 198.51.100.1"}
	for name, address := range map[string]string{"near": "192.0.2.7/24", "spare": "198.51.100.7/24"} {
		link := newLink(t, &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: name}})
		if err := addAddress(link, &agentv1.NetworkAddress{Prefix: address}); err != nil {
			t.Fatal(err)
		}
	}
	a := &applier{log: slog.New(slog.DiscardHandler)}
	routes := []*agentv1.NetworkRoute{
		{Link: "near", Gateway: "192.0.2.1", Metric: 100, Dynamic: true}, {Link: "spare", Gateway: "198.51.100.1", Metric: 100, Dynamic: true},
	}
	for _, when := range []string{"made", "made again"} {
		a.routes(routes)
		expect(t, when, inKernel(t), want...)
	}
	c := hostCapture(t, "near", "spare")
	if err := errors.Join(c.links(), c.routes()); err != nil {
		t.Fatal(err)
	}
	var carried []string
	for _, route := range c.network.GetRoutes() {
		carried = append(carried, route.GetGateway())
	}
	expect(t, "carried", carried, "192.0.2.1", "198.51.100.1")
}

// A metric has 32 bits without a sign. A route that was the last resort is none that comes first.
func TestRoutesOfGreatMetrics(t *testing.T) {
	t.Parallel()
	for _, metric := range []uint32{1, math.MaxInt32, 1 << 31, math.MaxUint32} {
		t.Run(strconv.FormatUint(uint64(metric), 10), func(t *testing.T) {
			t.Parallel()
			ownNetwork(t)
			near := newLink(t, &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "near"}})
			leased := &netlink.Addr{IPNet: prefixOf("192.0.2.7/24"), ValidLft: 3600, PreferedLft: 3600}
			if err := netlink.AddrAdd(near, leased); err != nil {
				t.Fatal(err)
			}
			route := &netlink.Route{LinkIndex: near.Attrs().Index, Dst: prefix("10.0.0.0/8"), Gw: net.IPv4(192, 0, 2, 1), Priority: int(metric)}
			if err := netlink.RouteAdd(route); err != nil {
				t.Fatal(err)
			}
			c := hostCapture(t, "near")
			if err := errors.Join(c.links(), c.routes()); err != nil || len(c.network.GetRoutes()) != 1 {
				t.Fatal(c.network.GetRoutes(), err)
			}
			carried := c.network.GetRoutes()[0]
			carried.Destination = "" // the default route, which nothing has made yet
			if err := addRoute(carried); err != nil {
				t.Fatal(err)
			}
			routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
			made := slices.IndexFunc(routes, func(route netlink.Route) bool { return prefixLength(route.Dst) == 0 })
			if err != nil || made < 0 || routes[made].Priority != int(metric) {
				t.Errorf("the kernel has %v, %v", routes, err)
			}
			if got := carriedTenures(c.network, time.Now())["near"].metric; got != int(metric) {
				t.Errorf("a lease in its place has the metric %d", got)
			}
		})
	}
}

// A deprecated address stays for ever, and deprecated. It is captured as such again.
func TestDeprecated(t *testing.T) {
	t.Parallel()
	ownNetwork(t)
	near := newLink(t, &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "near"}})
	for prefix, deprecated := range map[string]bool{"2001:db8::7/64": true, "2001:db8::8/64": false, "192.0.2.7/24": true, "198.51.100.7/24": false} {
		want := &agentv1.NetworkAddress{Prefix: prefix, Deprecated: deprecated}
		if err := addAddress(near, want); err != nil {
			t.Fatal(err)
		}
		list, err := netlink.AddrList(near, netlink.FAMILY_ALL)
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(list, func(address netlink.Addr) bool { return address.IPNet.String() == prefix })
		if at < 0 {
			t.Fatalf("%s is not there", prefix)
		}
		got := list[at]
		if is := got.Flags&unix.IFA_F_DEPRECATED != 0; is != deprecated || got.ValidLft != math.MaxUint32 || got.Flags&unix.IFA_F_PERMANENT == 0 {
			t.Errorf("%s: deprecated %t, valid for %d s, flags %x", prefix, is, got.ValidLft, got.Flags)
		}
		carried, err := hostCapture(t).addresses(near)
		if err != nil || !slices.ContainsFunc(carried, func(a *agentv1.NetworkAddress) bool { return proto.Equal(a, want) }) {
			t.Errorf("%s: %v, %v", prefix, carried, err)
		}
	}
}
