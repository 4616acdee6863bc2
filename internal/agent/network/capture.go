package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

const (
	// maxFile bounds a configuration file that is carried.
	maxFile = 256 << 10
	// interfaces is where the kernel tells of network interfaces.
	interfaces = "/sys/class/net"
	// addressSet is what the kernel says of a MAC address that was set while the interface was there
	// (NET_ADDR_SET in include/uapi/linux/netdevice.h).
	addressSet = "3"
	// infiniband is what the kernel says of the type of an interface of IP over InfiniBand
	// (ARPHRD_INFINIBAND in include/uapi/linux/if_arp.h).
	infiniband = "32"
)

// families are those that routes are carried of.
var families = []struct {
	number int
	name   string
	// rules is how many rules of policy routing the kernel makes by itself: local, main and, for
	// IPv4, default.
	rules int
}{
	{netlink.FAMILY_V4, "IPv4", 3},
	{netlink.FAMILY_V6, "IPv6", 2},
}

// Capture reads the network of this host, which has to lead to another one, a name or an address,
// where a port answers. The warnings say what is not carried.
func Capture(ctx context.Context, to, port string) (*agentv1.Network, []string, error) {
	c := &capture{network: new(agentv1.Network), names: map[int]string{}, tunnels: map[int]string{}, sys: interfaces, answers: answersOver}
	if err := c.links(); err != nil {
		return nil, nil, fmt.Errorf("read the network interfaces: %w", err)
	}
	if err := c.loopback(ctx, to); err != nil {
		return nil, nil, err
	}
	if err := c.throughTunnel(ctx, to, port); err != nil {
		return nil, nil, err
	}
	if err := c.routes(); err != nil {
		return nil, nil, fmt.Errorf("read the routes: %w", err)
	}
	c.rules()
	c.files()
	if len(c.network.GetLinks()) == 0 {
		return nil, c.warnings, errors.New("the host has no network interface that is up and could be carried over")
	}
	return c.network, c.warnings, nil
}

// Kinds returns the kinds of virtual interfaces in a network.
func Kinds(n *agentv1.Network) []string {
	var kinds []string
	for _, link := range n.GetLinks() {
		if kind := link.GetKind(); kind != "" && !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

type capture struct {
	network  *agentv1.Network
	names    map[int]string // of carried links, by index
	warnings []string
	sys      string // where the kernel tells of network interfaces
	// byDaemon are the routes of routing daemons that an installed system does not get.
	byDaemon []*agentv1.NetworkRoute
	// onLoopback are addresses of the loopback interface that reach beyond the host.
	onLoopback []string
	// leftOut are the interfaces with addresses that are not carried over, by index.
	leftOut []int
	// tunnels are the names and kinds of tunnels, by index.
	tunnels map[int]string
	// answers says whether a host takes a connection over an interface: answersOver.
	answers func(ctx context.Context, link, address string) bool
}

func (c *capture) warn(format string, args ...any) {
	c.warnings = append(c.warnings, fmt.Sprintf(format, args...))
}

func (c *capture) links() error {
	all, err := netlink.LinkList()
	if err != nil {
		return err
	}
	byIndex := map[int]netlink.Link{}
	for _, link := range all {
		byIndex[link.Attrs().Index] = link
	}
	for _, link := range all {
		carried, err := c.link(link, byIndex)
		if err != nil {
			return fmt.Errorf("%s: %w", link.Attrs().Name, err)
		}
		if carried != nil {
			c.network.Links = append(c.network.Links, carried)
		}
	}
	dropped := c.leaveOut()
	for _, link := range all {
		switch attrs := link.Attrs(); {
		case c.carries(attrs.Name):
			c.names[attrs.Index] = attrs.Name
		case slices.Contains(dropped, attrs.Name):
			c.leftOut = append(c.leftOut, attrs.Index)
		}
	}
	return nil
}

// loopback fails where the host has no other addresses than those of its loopback interface. What
// is left out counts where it leads out: those who gave it an address may give one to a card, too.
func (c *capture) loopback(ctx context.Context, to string) error {
	if len(c.onLoopback) == 0 {
		return nil
	}
	told := strings.Join(c.onLoopback, ", ")
	carried := slices.ContainsFunc(c.network.GetLinks(), func(link *agentv1.NetworkLink) bool { return len(link.GetAddresses()) > 0 })
	leadsOut := func(index int) bool { return slices.Contains(c.leftOut, index) }
	if !carried && !slices.ContainsFunc(waysTo(ctx, to), leadsOut) {
		return fmt.Errorf("the host is reached by an address of its loopback interface alone (%s), which is not carried over", told)
	}
	c.warn("addresses of the loopback interface are not carried over: %s", told)
	return nil
}

func (c *capture) carries(name string) bool {
	return slices.ContainsFunc(c.network.Links, func(link *agentv1.NetworkLink) bool { return link.GetName() == name })
}

// leaveOut leaves out the virtual interfaces that stand on nothing that is carried: they could not
// be made again. One may leave out another that stands on it. It returns those with addresses.
func (c *capture) leaveOut() (withAddresses []string) {
	for again := true; again; {
		again = false
		var kept []*agentv1.NetworkLink
		for _, link := range c.network.GetLinks() {
			if link.GetKind() == "" || slices.ContainsFunc(link.GetLower(), c.carries) {
				kept = append(kept, link)
				continue
			}
			again = true
			if len(link.GetAddresses()) > 0 {
				withAddresses = append(withAddresses, link.GetName())
			}
			c.warn("the network interface %s (%s) is not carried over, because what it stands on is not: %s",
				link.GetName(), link.GetKind(), strings.Join(link.GetLower(), ", "))
		}
		c.network.Links = kept
	}
	for _, link := range c.network.GetLinks() {
		link.Lower = slices.DeleteFunc(link.Lower, func(name string) bool { return !c.carries(name) })
		if link.GetVlanFiltering() {
			c.alone(link)
		}
	}
	return withAddresses
}

// link returns what is carried of an interface, nil where nothing is.
func (c *capture) link(link netlink.Link, byIndex map[int]netlink.Link) (*agentv1.NetworkLink, error) {
	attrs := link.Attrs()
	if attrs.Flags&net.FlagUp == 0 {
		return nil, nil
	}
	if attrs.Flags&net.FlagLoopback != 0 {
		addresses, err := c.addresses(link)
		for _, address := range addresses {
			c.onLoopback = append(c.onLoopback, address.GetPrefix())
		}
		return nil, err
	}
	carried := &agentv1.NetworkLink{Name: attrs.Name, Mac: ownAddress(c.sys, attrs), Mtu: int32(attrs.MTU)}
	switch l := link.(type) {
	case *netlink.Bond:
		carried.Kind = "bond"
		carried.Bond = &agentv1.Bond{
			Mode: int32(l.Mode), MiimonMs: int32(max(0, l.Miimon)), XmitHashPolicy: int32(l.XmitHashPolicy), LacpRate: int32(l.LacpRate),
		}
		carried.Lower = members(attrs.Index, byIndex)
		if l.ArpInterval > 0 && len(carried.Lower) > 0 {
			c.warn("the bond %s watches its ports by ARP, which is not carried over: it watches their links", attrs.Name)
		}
	case *netlink.Vlan:
		carried.Kind, carried.VlanId = "vlan", int32(l.VlanId)
		if l.VlanProtocol != netlink.VLAN_PROTOCOL_8021Q {
			carried.VlanProtocol = int32(l.VlanProtocol)
		}
		if parent := byIndex[attrs.ParentIndex]; parent != nil {
			carried.Lower = []string{parent.Attrs().Name}
		}
	case *netlink.Bridge:
		carried.Kind, carried.VlanFiltering = "bridge", c.filtersVLANs(attrs.Name)
		carried.Lower = c.bridged(attrs.Name, members(attrs.Index, byIndex))
	default:
		if kind := c.doesNotComeBack(link); kind != "" {
			if slices.Contains(tunnels, kind) {
				c.tunnels[attrs.Index] = fmt.Sprintf("%s (%s)", attrs.Name, kind)
			}
			addresses, err := c.addresses(link)
			if err == nil && len(addresses) > 0 && attrs.MasterIndex == 0 {
				c.leftOut = append(c.leftOut, attrs.Index)
				c.warn("the network interface %s (%s) is not carried over", attrs.Name, kind)
			}
			return nil, err
		}
		master := byIndex[attrs.MasterIndex]
		if master != nil && isHardware(c.sys, master.Attrs().Name) {
			return nil, nil // a part of it, as its driver makes it again
		}
		shared := master != nil && slices.Contains([]string{"bond", "team"}, master.Type())
		if now := attrs.HardwareAddr.String(); now != carried.GetMac() && !shared {
			carried.SetMac = now
		}
	}
	if carried.GetKind() != "" && len(carried.GetLower()) == 0 {
		return nil, nil // nothing leads out of the machine through it
	}
	var err error
	carried.Addresses, err = c.addresses(link)
	return carried, err
}

// doesNotComeBack returns the kind of an interface that is not there in memory, "" where it is: it
// has no hardware, or such whose drivers are not carried, or the old system has made it of a card.
func (c *capture) doesNotComeBack(link netlink.Link) string {
	sys := filepath.Join(c.sys, link.Attrs().Name)
	if !isHardware(c.sys, link.Attrs().Name) {
		return link.Type()
	}
	if word(sys, "type") == infiniband {
		return "IP over InfiniBand"
	}
	if _, err := os.Stat(filepath.Join(sys, "device/physfn")); err == nil {
		return "virtual function of SR-IOV"
	}
	return ""
}

// ownAddress is the address by which the interface is found again: of one whose address was set,
// and of a member of a bond, which carries the bond's, its own. Another kernel does not know what
// was set. Kernels before 5.6 tell the own address in sysfs alone, and of members of a bond.
func ownAddress(sys string, attrs *netlink.LinkAttrs) string {
	own := attrs.HardwareAddr
	if attrs.MasterIndex != 0 || word(sys, attrs.Name, "addr_assign_type") == addressSet {
		if told, err := net.ParseMAC(word(sys, attrs.Name, "bonding_slave/perm_hwaddr")); err == nil {
			own = told
		}
		if len(attrs.PermHWAddr) > 0 {
			own = attrs.PermHWAddr
		}
	}
	return own.String()
}

// addresses returns the addresses that reach beyond the link. The kernel makes the others itself.
func (c *capture) addresses(link netlink.Link) ([]*agentv1.NetworkAddress, error) {
	list, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	sources, err := routeSources()
	if err != nil {
		return nil, err
	}
	var carried []*agentv1.NetworkAddress
	var seconds []string
	for _, address := range list {
		if address.Scope == int(netlink.SCOPE_LINK) || address.Scope == int(netlink.SCOPE_HOST) {
			continue
		}
		// Of IPv4 the flag says that there is another address of the subnet. One that floats between
		// hosts (VRRP) is such a second one, and nobody would give it up in memory.
		if address.Flags&unix.IFA_F_TEMPORARY != 0 {
			if address.IP.To4() != nil {
				seconds = append(seconds, address.IPNet.String())
			}
			continue
		}
		if floats(address, list) && !slices.ContainsFunc(sources, address.IP.Equal) {
			c.warn("the address %s of %s is not carried over, because it is a single one in the subnet of another, and may float between hosts",
				address.IPNet, link.Attrs().Name)
			continue
		}
		if unproven(address.Flags) {
			c.warn("the address %s of %s is not carried over, because it may be another host's", address.IPNet, link.Attrs().Name)
			continue
		}
		a := &agentv1.NetworkAddress{Prefix: address.IPNet.String(), Deprecated: address.Flags&unix.IFA_F_DEPRECATED != 0}
		if address.Peer != nil && !address.Peer.IP.Equal(address.IP) {
			a.Peer = address.Peer.String()
		}
		if life := time.Duration(address.ValidLft) * time.Second; life < forEver {
			a.LifetimeMs = life.Milliseconds()
		}
		carried = append(carried, a)
	}
	c.secondsOf(link.Attrs().Name, seconds)
	return carried, nil
}

// secondsOf warns of the second addresses of an interface. There may be very many.
func (c *capture) secondsOf(name string, addresses []string) {
	switch n := len(addresses); n {
	case 0:
	case 1:
		c.warn("the address %s of %s is not carried over, because it is a second one of its subnet", addresses[0], name)
	default:
		c.warn("%d addresses of %s, as %s, are not carried over, because they are second ones of their subnets", n, name, addresses[0])
	}
}

// floats says whether an address is a single one, without an end, in the subnet of another of the
// same interface. That is how keepalived gives a host a floating address unless told otherwise.
func floats(address netlink.Addr, all []netlink.Addr) bool {
	single := func(a netlink.Addr) bool { ones, bits := a.Mask.Size(); return ones == bits }
	if !single(address) || time.Duration(address.ValidLft)*time.Second < forEver || address.Peer != nil && !address.Peer.IP.Equal(address.IP) {
		return false
	}
	return slices.ContainsFunc(all, func(other netlink.Addr) bool { return !single(other) && other.Contains(address.IP) })
}

// routeSources returns the addresses that routes of the main table are to be used from.
func routeSources() (sources []net.IP, err error) {
	list, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	for _, route := range list {
		if route.Src != nil && route.Protocol != unix.RTPROT_KERNEL {
			sources = append(sources, route.Src)
		}
	}
	return sources, err
}

// unproven says whether an address of IPv6 has failed the proof that nobody else has it, or has not
// passed it yet and may not be used before. In memory nobody would ask for that proof.
func unproven(flags int) bool {
	tentative := flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_OPTIMISTIC) == unix.IFA_F_TENTATIVE
	return tentative || flags&unix.IFA_F_DADFAILED != 0
}

func (c *capture) routes() error {
	for _, family := range families {
		list, err := netlink.RouteListFiltered(family.number, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return err
		}
		for _, route := range list {
			c.route(route, family.number == netlink.FAMILY_V6)
		}
		c.onlyWay(family.number == netlink.FAMILY_V6)
	}
	if n := len(c.byDaemon); n > 0 {
		c.warn("%d routes of routing daemons are carried over into memory, but not into an installed system", n)
	}
	return nil
}

// onlyWay has an installed system get the default routes of routing daemons where there is none but
// theirs: it has no such daemon at first.
func (c *capture) onlyWay(ipv6 bool) {
	isDefault := func(r *agentv1.NetworkRoute) bool { return r.GetIpv6() == ipv6 && r.GetDestination() == "" }
	for _, r := range c.network.GetRoutes() {
		if isDefault(r) && !slices.Contains(c.byDaemon, r) {
			return
		}
	}
	c.byDaemon = slices.DeleteFunc(c.byDaemon, func(r *agentv1.NetworkRoute) bool {
		only := isDefault(r)
		r.Dynamic = !only
		return only
	})
}

// route carries a route of the main table, unless the kernel makes it itself with an address. One
// with a gateway is somebody's, whatever it is marked as: ifupdown2 marks so what it makes.
func (c *capture) route(route netlink.Route, ipv6 bool) {
	own := route.Protocol == unix.RTPROT_KERNEL && route.Gw == nil && route.Via == nil && len(route.MultiPath) == 0
	if own || route.Type != unix.RTN_UNICAST {
		return
	}
	if route.Encap != nil || route.MPLSDst != nil {
		c.warn("the route to %s is encapsulated and not carried over", route.Dst)
		return
	}
	hops := route.MultiPath
	if len(hops) == 0 {
		hops = []*netlink.NexthopInfo{{LinkIndex: route.LinkIndex, Gw: route.Gw, Flags: route.Flags, Via: route.Via}}
	}
	hop := c.hop(hops)
	if hop == nil {
		return
	}
	gateway := hop.Gw
	if via, ok := hop.Via.(*netlink.Via); ok && gateway == nil {
		gateway = via.Addr
	}
	r := &agentv1.NetworkRoute{
		Link: c.names[hop.LinkIndex], Metric: int32(route.Priority), OnLink: hop.Flags&unix.RTNH_F_ONLINK != 0, Ipv6: ipv6,
		Dynamic: !slices.Contains(lasting, route.Protocol),
	}
	if r.GetDynamic() && !slices.Contains(given, route.Protocol) {
		c.byDaemon = append(c.byDaemon, r)
	}
	if route.Dst != nil {
		if ones, _ := route.Dst.Mask.Size(); ones > 0 || !route.Dst.IP.IsUnspecified() {
			r.Destination = route.Dst.String()
		}
	}
	if gateway != nil {
		r.Gateway = gateway.String()
	}
	if route.Src != nil {
		r.Source = route.Src.String()
	}
	c.network.Routes = append(c.network.Routes, r)
}

// hop returns the one hop of a route that is carried, because one is enough to be reached: the
// first over an interface that is carried and has a cable, else the first over a carried one.
func (c *capture) hop(hops []*netlink.NexthopInfo) (first *netlink.NexthopInfo) {
	for _, hop := range hops {
		switch {
		case c.names[hop.LinkIndex] == "":
		case hop.Flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) == 0:
			return hop
		case first == nil:
			first = hop
		}
	}
	return first
}

// rules warns of policy routing. It counts the rules and does not read what they say, because that
// costs the agent 8 KiB.
func (c *capture) rules() {
	for _, family := range families {
		list := nl.NewNetlinkRequest(unix.RTM_GETRULE, unix.NLM_F_DUMP)
		list.AddData(nl.NewIfInfomsg(family.number))
		rules, err := list.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWRULE)
		if err == nil && len(rules) > family.rules {
			c.warn("%d rules of policy routing (%s) are not carried over", len(rules)-family.rules, family.name)
		}
	}
}

// lasting are who makes routes that an installed system cannot get but by being told. given are who
// makes those that DHCP or a router gave; all others are of routing daemons.
var (
	lasting = []netlink.RouteProtocol{unix.RTPROT_KERNEL, unix.RTPROT_BOOT, unix.RTPROT_STATIC}
	given   = []netlink.RouteProtocol{unix.RTPROT_DHCP, unix.RTPROT_RA, unix.RTPROT_REDIRECT}
)

// small returns the content of a file that is not too large, nil where there is none.
func small(path string) []byte {
	data, err := os.ReadFile(path)
	if err != nil || len(data) > maxFile || bytes.IndexByte(data, 0) >= 0 {
		return nil
	}
	return data
}

// word returns the one word that a file of the kernel's has, "" where there is none.
func word(path ...string) string {
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
