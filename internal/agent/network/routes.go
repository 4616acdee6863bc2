package network

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// anywhere are addresses that only a default route leads to: they are for documentation.
var anywhere = []net.IP{net.IPv4(192, 0, 2, 1), net.ParseIP("2001:db8::1")}

// leads says whether a route over an interface with a link leads to the host. Of a name whose
// addresses cannot be found it says whether there is a default route.
func leads(ctx context.Context, host string) bool {
	return slices.ContainsFunc(waysTo(ctx, host), passes)
}

// waysTo returns the interfaces over which routes lead to the host, by index.
func waysTo(ctx context.Context, host string) (links []int) {
	for _, address := range addressesOf(ctx, host) {
		routes, err := netlink.RouteGet(address)
		for i := range routes {
			if err == nil {
				links = append(links, routes[i].LinkIndex)
			}
		}
	}
	return links
}

// leadsWithout says what leads would say if there was nothing of the lease. The kernel cannot be
// asked that, so this looks whether there is such a route. Those over an interface without a link
// do not count for the kernel either.
func leadsWithout(ctx context.Context, host string, lease *net.IPNet) bool {
	for _, address := range addressesOf(ctx, host) {
		routes, err := netlink.RouteListFiltered(family(address), &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		for i := range routes {
			r := &routes[i]
			ofLease := r.Protocol == unix.RTPROT_DHCP || r.Protocol == unix.RTPROT_KERNEL && lease != nil && r.Src.Equal(lease.IP)
			if err == nil && !ofLease && r.Type == unix.RTN_UNICAST && r.Dst != nil && r.Dst.Contains(address) && passes(r.LinkIndex) {
				return true
			}
		}
	}
	return false
}

// addressesOf returns the addresses of a host, or where its name cannot be found, some that only a
// default route leads to.
func addressesOf(ctx context.Context, host string) []net.IP {
	if address := net.ParseIP(host); address != nil {
		return []net.IP{address}
	}
	limited, cancel := context.WithTimeout(ctx, lookupWait)
	defer cancel()
	found, err := net.DefaultResolver.LookupIP(limited, "ip", host)
	if err != nil {
		return anywhere
	}
	return found
}

// passes says whether the interface of that index has a link.
func passes(index int) bool {
	link, err := netlink.LinkByIndex(index)
	return err == nil && !down(link)
}

func prefixLength(n *net.IPNet) int {
	ones, _ := n.Mask.Size()
	return ones
}

// up says whether the interface of that name is there and has a link.
func up(name string) bool {
	link, err := netlink.LinkByName(name)
	return err == nil && !down(link)
}

// passDeadLinks has the kernel take another route than those over the interface while that has no
// link, as daemons of the old system may have done. An interface without a family has no such file.
func passDeadLinks(name string) {
	for _, family := range families {
		path := filepath.Join("/proc/sys/net", strings.ToLower(family.name), "conf", name, "ignore_routes_with_linkdown")
		_ = os.WriteFile(path, []byte("1"), 0)
	}
}

// down says whether an interface passes nothing: it has no link, or what it stands on has none.
func down(link netlink.Link) bool {
	state := link.Attrs().OperState
	return state == netlink.OperDown || state == netlink.OperLowerLayerDown
}

// routes adds the routes: first those that lead to a link, by which the gateways of the others are
// reached. What depends on another one has a second chance.
func (a *applier) routes(routes []*agentv1.NetworkRoute) {
	routes = slices.Clone(routes)
	slices.SortStableFunc(routes, func(x, y *agentv1.NetworkRoute) int { return min(1, len(x.GetGateway())) - min(1, len(y.GetGateway())) })
	for attempt := range 2 {
		var failed []*agentv1.NetworkRoute
		for _, route := range routes {
			err := addRoute(route)
			if err == nil {
				continue
			}
			failed = append(failed, route)
			if attempt > 0 {
				a.log.Warn("a route is not as it was", slog.String("destination", route.GetDestination()),
					slog.String("gateway", route.GetGateway()), slog.Any("err", err))
			}
		}
		routes = failed
	}
}

// restore makes again what was carried over on an interface that DHCP was asked on, and the name
// servers: the kernel takes routes away with the address that DHCP gave.
func (a *applier) restore(name string) {
	if servers := a.network.GetResolvConf(); len(servers) > 0 {
		a.write("resolv.conf", servers)
	}
	again, left := &agentv1.NetworkLink{Name: name}, false
	for _, link := range a.network.GetLinks() {
		for _, address := range link.GetAddresses() {
			if prefix := address.GetPrefix(); link.GetName() == name && !slices.Contains(a.forgotten, name+" "+prefix) {
				again.Addresses = append(again.Addresses, address)
				left = left || !strings.Contains(prefix, ":")
			}
		}
	}
	a.remake(again)
	var routes []*agentv1.NetworkRoute
	for _, route := range a.network.GetRoutes() {
		if left && route.GetLink() == name && !route.GetIpv6() {
			routes = append(routes, route)
		}
	}
	a.routes(routes)
}

// forget takes an address for another machine's from now on, because its server gave another one in
// its place: restore does not make it again, nor routes without any other of IPv4.
func (a *applier) forget(name string, address *net.IPNet) {
	a.forgotten = append(a.forgotten, name+" "+address.String())
}

func addRoute(r *agentv1.NetworkRoute) error {
	link, err := netlink.LinkByName(r.GetLink())
	if err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Priority: int(uint32(r.GetMetric())), Gw: net.ParseIP(r.GetGateway()), Src: net.ParseIP(r.GetSource())}
	destination := r.GetDestination()
	if destination == "" {
		destination = "0.0.0.0/0"
		if r.GetIpv6() {
			destination = "::/0"
		}
	}
	if _, route.Dst, err = net.ParseCIDR(destination); err != nil {
		return err
	}
	if gateway := route.Gw; gateway != nil && gateway.To4() != nil && r.GetIpv6() || gateway != nil && gateway.To4() == nil && !r.GetIpv6() {
		route.Via, route.Gw = &netlink.Via{AddrFamily: family(gateway), Addr: gateway}, nil // RFC 5549
	}
	if route.Gw == nil && route.Via == nil {
		route.Scope = netlink.SCOPE_LINK
	}
	if r.GetOnLink() {
		route.SetFlag(netlink.FLAG_ONLINK)
	}
	// RouteReplace would take away a route of the same metric over another interface.
	err = netlink.RouteAppend(route)
	if errors.Is(err, unix.EINVAL) && route.Src != nil {
		route.Src = nil // it may be an address that was not carried over
		err = netlink.RouteAppend(route)
	}
	return wrap("add it", err)
}

func family(ip net.IP) int {
	if ip.To4() != nil {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}
