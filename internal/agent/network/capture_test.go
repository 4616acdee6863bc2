package network

import (
	"cmp"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// The members of a bond all have its address. Each is told by its own, which older kernels do not
// tell by netlink. So is an interface whose address was set by hand.
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
	for name, how := range map[string]string{"eth3": "3\n", "eth4": "0\n", "eth5": "3\n"} {
		if err := os.MkdirAll(filepath.Join(sys, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(sys, name, "addr_assign_type"), []byte(how), 0o600); err != nil {
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
		"set by hand":           {netlink.LinkAttrs{Name: "eth3", HardwareAddr: shared, PermHWAddr: own}, "02:00:00:00:00:0b"},
		"as it was made":        {netlink.LinkAttrs{Name: "eth4", HardwareAddr: shared, PermHWAddr: own}, "02:00:00:00:00:01"},
		"set, before 5.6":       {netlink.LinkAttrs{Name: "eth5", HardwareAddr: shared}, "02:00:00:00:00:01"},
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

// A bridge or VLAN that stands on nothing that is carried is not carried, nor what stands on it. It
// is told, unless it leads to the containers and virtual machines of this host alone.
func TestStandsOnNothing(t *testing.T) {
	t.Parallel()
	ownNetwork(t)
	hardware := newLink(t, &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}})
	bridged := func(name string, members ...netlink.Link) netlink.Link {
		t.Helper()
		bridge := newLink(t, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}})
		for _, member := range members {
			if err := netlink.LinkSetMaster(member, bridge); err != nil {
				t.Fatal(err)
			}
		}
		return bridge
	}
	inside := newLink(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "inside"}, PeerName: "peer"})
	virtual := newLink(t, &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "vnet0"}, Mode: netlink.TUNTAP_MODE_TAP})
	other := newLink(t, &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "ifb0"}})
	container := newLink(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "container"}, PeerName: "eth9"})
	beside := newLink(t, &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "ifb1"}})
	bridged("br0", hardware, inside, beside)
	br1 := bridged("br1", other)
	br2 := bridged("br2", container, virtual)
	for link, address := range map[netlink.Link]string{br1: "192.0.2.7/24", br2: "198.51.100.7/24"} {
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: prefixOf(address)}); err != nil {
			t.Fatal(err)
		}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: prefix("203.0.113.0/24"), Scope: netlink.SCOPE_LINK}
		if err := netlink.RouteAppend(route); err != nil {
			t.Fatal(err)
		}
	}

	c := hostCapture(t, "eth0")
	if err := errors.Join(c.links(), c.routes()); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, link := range c.network.GetLinks() {
		got = append(got, link.GetName()+" on "+strings.Join(link.GetLower(), ","))
	}
	slices.Sort(got)
	expect(t, "carried", got, "br0 on eth0", "eth0 on ")
	expect(t, "warnings", c.warnings, "the network interface br1 (bridge) is not carried over, because what it stands on is not: ifb0")
	if routes := c.network.GetRoutes(); len(routes) > 0 {
		t.Errorf("routes over what is not carried: %v", routes)
	}
}

// What stands on a VLAN that is not carried is not carried, in whatever order the kernel lists
// them.
func TestStandsOnNothingBelow(t *testing.T) {
	t.Parallel()
	c := &capture{network: &agentv1.Network{Links: []*agentv1.NetworkLink{
		{Name: "br7", Kind: "bridge", Lower: []string{"team0.7", "vx0"}, Addresses: []*agentv1.NetworkAddress{{Prefix: "192.0.2.7/24"}}},
		{Name: "eth0"},
		{Name: "eth0.7", Kind: "vlan", Lower: []string{"eth0"}},
		{Name: "team0.7", Kind: "vlan", Lower: []string{"team0"}},
	}}}
	expect(t, "left out with addresses", c.leaveOut(), "br7")
	var got []string
	for _, link := range c.network.GetLinks() {
		got = append(got, link.GetName())
	}
	expect(t, "carried", got, "eth0", "eth0.7")
	expect(t, "warnings", c.warnings,
		"the network interface team0.7 (vlan) is not carried over, because what it stands on is not: team0",
		"the network interface br7 (bridge) is not carried over, because what it stands on is not: team0.7, vx0")
}

// An interface that does not come back in memory is not carried, although it has hardware: IP over
// InfiniBand, whose drivers stay behind, and a function that the old system has made of a card.
func TestDoesNotComeBack(t *testing.T) {
	t.Parallel()
	ownNetwork(t)
	c := hostCapture(t, "eth0", "eth1", "eth2", "ib0", "ib1")
	for path, text := range map[string]string{"eth0/type": "1\n", "ib0/type": "32\n", "ib1/type": "32\n", "eth1/device/physfn": "", "eth2/device/physfn": ""} {
		if err := os.WriteFile(filepath.Join(c.sys, path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, address := range map[string]string{"eth0": "192.0.2.7/24", "eth1": "198.51.100.7/24", "eth2": "", "ib0": "203.0.113.7/24", "ib1": ""} {
		link := newLink(t, &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: name}})
		if address == "" {
			continue
		}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: prefixOf(address)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.links(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, link := range c.network.GetLinks() {
		got = append(got, link.GetName())
	}
	slices.Sort(got)
	slices.Sort(c.warnings)
	expect(t, "carried", got, "eth0")
	expect(t, "warnings", c.warnings, "the network interface eth1 (virtual function of SR-IOV) is not carried over",
		"the network interface ib0 (IP over InfiniBand) is not carried over")
}

// Two interfaces of one MAC address that a driver has joined are one that is carried. A member of a
// bond or bridge is none of them, whatever hardware it has.
func TestPartOfHardware(t *testing.T) {
	t.Parallel()
	ownNetwork(t)
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	under := func(master int, name string) *netlink.Device {
		return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name, Index: 1000, HardwareAddr: mac, PermHWAddr: mac, Flags: net.FlagUp, MasterIndex: master}}
	}
	byIndex := map[int]netlink.Link{
		7: &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "eth0", Index: 7}},
		8: &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0", Index: 8}},
	}
	for master, carries := range map[int]bool{0: true, 7: false, 8: true, 9: true} {
		c := hostCapture(t, "eth0", "enP1s1")
		carried, err := c.link(under(master, "enP1s1"), byIndex)
		if err != nil || (carried != nil) != carries {
			t.Errorf("under %v: %v, %v", byIndex[master], carried, err)
		}
		expect(t, "warnings", c.warnings)
	}
}

// hostCapture is a capture of a host that has hardware behind the interfaces of these names.
func hostCapture(t *testing.T, hardware ...string) *capture {
	t.Helper()
	c := &capture{network: new(agentv1.Network), names: map[int]string{}, tunnels: map[int]string{}, sys: t.TempDir()}
	for _, name := range hardware {
		if err := os.MkdirAll(filepath.Join(c.sys, name, "device"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// A MAC address that was set by hand is carried over beside the interface's own. That of a bond or
// team, which its members have, is not theirs.
func TestSetByHand(t *testing.T) {
	t.Parallel()
	ownNetwork(t)
	now, own := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	byIndex := map[int]netlink.Link{
		7: &netlink.Bond{LinkAttrs: netlink.LinkAttrs{Name: "bond0", Index: 7}},
		8: &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0", Index: 8}},
		9: &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: "team0", Index: 9}, LinkType: "team"},
	}
	for name, test := range map[string]struct {
		how       string
		master    int
		has       net.HardwareAddr
		mac, hand string
	}{
		"alone":       {"3", 0, now, own.String(), now.String()},
		"in a bridge": {"3", 8, now, own.String(), now.String()},
		"in a bond":   {"3", 7, now, own.String(), ""},
		"in a team":   {"3", 9, now, own.String(), ""},
		"set back":    {"3", 0, own, own.String(), ""},
		"as made":     {"0", 0, now, now.String(), ""},
	} {
		c := hostCapture(t, "eth0")
		if err := os.WriteFile(filepath.Join(c.sys, "eth0", "addr_assign_type"), []byte(test.how+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		attrs := netlink.LinkAttrs{Name: "eth0", Index: 1000, HardwareAddr: test.has, PermHWAddr: own, Flags: net.FlagUp, MasterIndex: test.master}
		carried, err := c.link(&netlink.Device{LinkAttrs: attrs}, byIndex)
		if err != nil || carried.GetMac() != test.mac || carried.GetSetMac() != test.hand {
			t.Errorf("%s: %v, %v", name, carried, err)
		}
		expect(t, name+": warnings", c.warnings)
	}
}

// A VLAN is made with the protocol that it had. One whose protocol was not told is of 802.1Q.
func TestVlanProtocol(t *testing.T) {
	t.Parallel()
	ownNetwork(t)
	c := hostCapture(t)
	byIndex := map[int]netlink.Link{7: &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "eth0", Index: 7}}}
	for name, test := range map[string]struct {
		has      netlink.VlanProtocol
		carried  int32
		isToHave netlink.VlanProtocol
	}{
		"service":  {netlink.VLAN_PROTOCOL_8021AD, 0x88a8, netlink.VLAN_PROTOCOL_8021AD},
		"customer": {netlink.VLAN_PROTOCOL_8021Q, 0, netlink.VLAN_PROTOCOL_UNKNOWN},
		"old":      {netlink.VLAN_PROTOCOL_UNKNOWN, 0, netlink.VLAN_PROTOCOL_UNKNOWN},
	} {
		attrs := netlink.LinkAttrs{Name: name, Index: 1000, ParentIndex: 7, Flags: net.FlagUp}
		carried, err := c.link(&netlink.Vlan{LinkAttrs: attrs, VlanId: 5, VlanProtocol: test.has}, byIndex)
		if err != nil || carried.GetVlanProtocol() != test.carried {
			t.Errorf("%s: %v, %v", name, carried, err)
		}
		made, ok := asked(t, carried, 7).(*netlink.Vlan)
		if !ok || made.VlanProtocol != test.isToHave || made.VlanId != 5 || made.ParentIndex != 7 {
			t.Errorf("%s: it would be made as %+v", name, made)
		}
	}
	expect(t, "warnings", c.warnings)
}

// An address of IPv6 that another host may have is not carried over.
func TestUnproven(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		flags int
		want  bool
	}{
		"in use":                     {unix.IFA_F_PERMANENT, false},
		"deprecated":                 {unix.IFA_F_DEPRECATED, false},
		"without a proof":            {unix.IFA_F_NODAD, false},
		"not yet proven":             {unix.IFA_F_TENTATIVE, true},
		"not yet proven, but in use": {unix.IFA_F_TENTATIVE | unix.IFA_F_OPTIMISTIC, false},
		"another host's":             {unix.IFA_F_PERMANENT | unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED, true},
		"another host's, optimistic": {unix.IFA_F_OPTIMISTIC | unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED, true},
	} {
		if got := unproven(test.flags); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}

	// The kernel proves nothing without a link.
	ownNetwork(t)
	near := newLink(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far"})
	for address, flags := range map[string]int{"2001:db8::7/64": 0, "2001:db8::8/64": unix.IFA_F_NODAD, "192.0.2.7/24": 0} {
		if err := netlink.AddrAdd(near, &netlink.Addr{IPNet: prefixOf(address), Flags: flags}); err != nil {
			t.Fatal(err)
		}
	}
	c := hostCapture(t)
	carried, err := c.addresses(near)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, address := range carried {
		got = append(got, address.GetPrefix())
	}
	expect(t, "carried", got, "192.0.2.7/24", "2001:db8::8/64")
	expect(t, "warnings", c.warnings, "the address 2001:db8::7/64 of near is not carried over, because it may be another host's")

	if err := netlink.AddrAdd(near, &netlink.Addr{IPNet: prefixOf("192.0.2.8/24")}); err != nil {
		t.Fatal(err)
	}
	c = hostCapture(t)
	carried, err = c.addresses(near)
	if second := "the address 192.0.2.8/24 of near is not carried over, because it is a second one of its subnet"; err != nil || len(carried) != 2 ||
		!slices.Contains(c.warnings, second) {
		t.Errorf("carried %v, warned %q, %v", carried, c.warnings, err)
	}
	if err := netlink.AddrAdd(near, &netlink.Addr{IPNet: prefixOf("192.0.2.9/24")}); err != nil {
		t.Fatal(err)
	}
	c = hostCapture(t)
	if _, err = c.addresses(near); err != nil || len(c.warnings) != 2 || !strings.HasPrefix(c.warnings[1], "2 addresses of near, as 192.0.2.8/24, ") {
		t.Errorf("of two second ones: warned %q, %v", c.warnings, err)
	}
}

// TestFloatingAddressesStay with the host that has them next: keepalived gives them without a
// subnet. An address of another subnet, or one that a route is used from, is the host's own.
func TestFloatingAddressesStay(t *testing.T) {
	ownNetwork(t)
	near := newLink(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far"})
	for _, address := range []string{"192.0.2.7/24", "192.0.2.100/32", "192.0.2.101/32", "198.51.100.1/32", "2001:db8::7/64", "2001:db8::100/128"} {
		if err := netlink.AddrAdd(near, &netlink.Addr{IPNet: prefixOf(address), Flags: unix.IFA_F_NODAD}); err != nil {
			t.Fatal(err)
		}
	}
	route := &netlink.Route{LinkIndex: near.Attrs().Index, Dst: prefixOf("203.0.113.0/24"), Src: net.ParseIP("192.0.2.101"), Scope: netlink.SCOPE_LINK}
	if err := netlink.RouteAdd(route); err != nil {
		t.Fatal(err)
	}
	c := hostCapture(t)
	carried, err := c.addresses(near)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, address := range carried {
		got = append(got, address.GetPrefix())
	}
	slices.Sort(got)
	expect(t, "carried", got, "192.0.2.101/32", "192.0.2.7/24", "198.51.100.1/32", "2001:db8::7/64")
	if len(c.warnings) != 2 || !strings.Contains(c.warnings[0], "192.0.2.100/32 of near is not carried over") {
		t.Errorf("warned %q", c.warnings)
	}
}

// What a routing daemon has made is for it to make again: an installed system does not get it for
// ever. The way out of such a host is carried all the same where there is no other.
func TestRoutesOfDaemons(t *testing.T) {
	t.Parallel()
	const bird, bgp = 12, 186
	for name, test := range map[string]struct {
		static       bool // there is a default route of the host's own
		gets, warned string
	}{
		"a way of its own":   {true, "default 10.2.0.0/16 10.6.0.0/16", "4 routes of routing daemons are carried over into memory, but not into an installed system"},
		"the daemon's alone": {false, "default 10.2.0.0/16 10.6.0.0/16", "3 routes of routing daemons are carried over into memory, but not into an installed system"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			near := cable(t)
			if err := netlink.AddrAdd(near, &netlink.Addr{IPNet: prefixOf("192.0.2.7/24")}); err != nil {
				t.Fatal(err)
			}
			add := func(destination string, protocol netlink.RouteProtocol, metric int) {
				route := &netlink.Route{LinkIndex: near.Attrs().Index, Dst: prefix(destination), Gw: net.IPv4(192, 0, 2, 1), Protocol: protocol, Priority: metric}
				if err := netlink.RouteAdd(route); err != nil {
					t.Fatal(err)
				}
			}
			add("10.2.0.0/16", unix.RTPROT_STATIC, 0)
			add("10.3.0.0/26", bird, 0)
			add("10.3.0.64/26", bird, 0)
			add("10.4.0.0/16", bgp, 0)
			add("10.5.0.0/16", unix.RTPROT_DHCP, 0)
			add("10.6.0.0/16", unix.RTPROT_KERNEL, 0) // as ifupdown2 marks what it makes
			add("0.0.0.0/0", bgp, 20)
			if test.static {
				add("0.0.0.0/0", unix.RTPROT_BOOT, 100)
			}
			c := hostCapture(t)
			c.names[near.Attrs().Index] = "near"
			if err := c.routes(); err != nil {
				t.Fatal(err)
			}
			var gets []string
			for _, r := range c.network.GetRoutes() {
				if !r.GetDynamic() {
					gets = append(gets, cmp.Or(r.GetDestination(), "default"))
				}
			}
			expect(t, "what an installed system gets", gets, strings.Fields(test.gets)...)
			expect(t, "warnings", c.warnings, test.warned)
			if all := len(c.network.GetRoutes()); all < 6 {
				t.Errorf("%d routes are carried into memory", all)
			}
		})
	}
}

// A host whose one address is on its loopback interface would not be reached in memory. Beside
// another address it is only told, and a route that was to be used from it is made without.
func TestAddressOnLoopback(t *testing.T) {
	t.Parallel()
	near := cable(t)
	lo := named(t, "lo")
	if err := errors.Join(netlink.LinkSetUp(lo), netlink.AddrAdd(lo, &netlink.Addr{IPNet: prefixOf("198.51.100.7/32")})); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"fe80::7/64", "192.0.2.7/24"} {
		if err := netlink.AddrAdd(near, &netlink.Addr{IPNet: prefixOf(address), Flags: unix.IFA_F_NODAD, Scope: scopeOf(address)}); err != nil {
			t.Fatal(err)
		}
		c := hostCapture(t, "near")
		if err := c.links(); err != nil {
			t.Fatal(err)
		}
		err := c.loopback(t.Context(), "192.0.2.99")
		if alone := address == "fe80::7/64"; alone != (err != nil) || alone && !strings.Contains(err.Error(), "198.51.100.7/32") {
			t.Errorf("with %s: %v", address, err)
		} else if !alone {
			expect(t, "warnings", c.warnings, "addresses of the loopback interface are not carried over: 198.51.100.7/32")
		}
	}
	// with an interface that is left out: the way to the control plane, or that to containers
	if err := netlink.AddrDel(near, &netlink.Addr{IPNet: prefixOf("192.0.2.7/24")}); err != nil {
		t.Fatal(err)
	}
	other := newLink(t, &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "other"}})
	if err := netlink.AddrAdd(other, &netlink.Addr{IPNet: prefixOf("192.0.2.8/24")}); err != nil {
		t.Fatal(err)
	}
	if err := addRoute(&agentv1.NetworkRoute{Link: "near"}); err != nil {
		t.Fatal(err)
	}
	for host, refused := range map[string]bool{"192.0.2.99": false, "203.0.113.99": true} {
		c := hostCapture(t, "near")
		if err := c.links(); err != nil {
			t.Fatal(err)
		}
		if err := c.loopback(t.Context(), host); refused != (err != nil) {
			t.Errorf("the control plane is %s: %v", host, err)
		}
	}
	if err := netlink.AddrDel(lo, &netlink.Addr{IPNet: prefixOf("198.51.100.7/32")}); err != nil {
		t.Fatal(err)
	}
	if err := addRoute(&agentv1.NetworkRoute{Link: "other", Gateway: "192.0.2.1", Source: "198.51.100.7"}); err != nil {
		t.Error(err)
	}
}

func scopeOf(address string) int {
	if strings.HasPrefix(address, "fe80:") {
		return int(netlink.SCOPE_LINK)
	}
	return int(netlink.SCOPE_UNIVERSE)
}
