package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// dhcpWait is how long one interface may take to get a lease.
const dhcpWait = 20 * time.Second

// askable returns the hardware interfaces that have a link, after a moment for those that are only
// brought up now.
func (a *applier) askable(ctx context.Context) []string {
	for _, link := range whole(hardware()) {
		if err := netlink.LinkSetUp(link); err != nil {
			a.log.Warn("a network interface cannot be brought up", slog.String("link", link.Attrs().Name), slog.Any("err", err))
		}
	}
	await(ctx, carrierWait, func() bool { return len(linked()) == len(whole(hardware())) })
	var names []string
	for _, link := range linked() {
		names = append(names, link.Attrs().Name)
	}
	return names
}

// linked returns the hardware interfaces that have a link.
func linked() []netlink.Link {
	var found []netlink.Link
	for _, link := range whole(hardware()) {
		if word(interfaces, link.Attrs().Name, "carrier") == "1" {
			found = append(found, link)
		}
	}
	return found
}

// wantedOptions are what a server is asked for. Classless routes come before the router, as
// RFC 3442 wants it.
var wantedOptions = []dhcpv4.OptionCode{
	dhcpv4.OptionSubnetMask, dhcpv4.OptionClasslessStaticRoute, dhcpv4.OptionRouter, dhcpv4.OptionDomainName, dhcpv4.OptionDomainNameServer,
}

// ask asks for a lease on the interface, where it had the address that is not nil.
func ask(ctx context.Context, name string, had *net.IPNet) (*dhcpv4.DHCPv4, error) {
	ctx, cancel := context.WithTimeout(ctx, dhcpWait)
	defer cancel()
	client, err := nclient4.New(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	modifiers := []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptParameterRequestList(wantedOptions...))}
	offer, err := client.DiscoverOffer(ctx, append(modifiers, wish(had)...)...)
	if err != nil {
		return nil, err
	}
	granted, err := client.RequestFromOffer(ctx, offer, modifiers...)
	if err != nil {
		return nil, err
	}
	return granted.ACK, nil
}

// wish asks a server for an address, which it gives if it likes. It is for a discovery alone: a
// request names what was offered.
func wish(had *net.IPNet) []dhcpv4.Modifier {
	if had == nil {
		return nil
	}
	return []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(had.IP))}
}

// take makes address, routes and name servers of an answer, in the place of the address that there
// was.
func (a *applier) take(name string, before tenure, ack *dhcpv4.DHCPv4) error {
	err := take(name, before, ack)
	var text []byte
	for _, server := range ack.DNS() {
		text = fmt.Appendf(text, "nameserver %s\n", server)
	}
	if err == nil && len(text) > 0 {
		a.write("resolv.conf", text)
	}
	return err
}

// take makes address and routes. The routes come before those to the same destination that were
// carried over, and do not replace them: these hold again when the lease is dropped.
func take(name string, before tenure, ack *dhcpv4.DHCPv4) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	address := &netlink.Addr{IPNet: leased(ack)}
	if before.address != nil && !before.has(address.IPNet) {
		drop(name, before)
		before.ack = nil
	}
	if err := netlink.AddrReplace(link, address); err != nil {
		return fmt.Errorf("add the address %s: %w", address.IPNet, err)
	}
	routes := tenure{address: address.IPNet, metric: before.metric, ack: ack}.routes(link)
	for _, route := range routes {
		// For IPv4 this is "ip route prepend".
		if err := netlink.RouteAddEcmp(route); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add the route to %s over %s: %w", route.Dst, route.Gw, err)
		}
	}
	for _, old := range before.routes(link) {
		if !slices.ContainsFunc(routes, func(route *netlink.Route) bool { return route.Equal(*old) }) {
			_ = netlink.RouteDel(old)
		}
	}
	return nil
}

// drop takes back an address, and the routes that came with it.
func drop(name string, before tenure) {
	link, err := netlink.LinkByName(name)
	if err != nil || before.address == nil {
		return
	}
	for _, route := range before.routes(link) {
		_ = netlink.RouteDel(route) // it may have gone with something else
	}
	_ = netlink.AddrDel(link, &netlink.Addr{IPNet: before.address})
}

// routes returns the routes that came with the answer. They say that they are from DHCP, so that
// none is taken for one that was carried over.
func (t tenure) routes(link netlink.Link) []*netlink.Route {
	if t.ack == nil {
		return nil
	}
	routes := leasedRoutes(t.ack, t.address)
	for _, route := range routes {
		route.LinkIndex, route.Protocol = link.Attrs().Index, unix.RTPROT_DHCP
		if prefixLength(route.Dst) == 0 {
			route.Priority = t.metric
		}
	}
	return routes
}

// leasedRoutes returns the routes of an answer that gave the address: its classless routes
// (RFC 3442), or where it has none, the default route over its first router. Those that lead to the
// link come first.
func leasedRoutes(ack *dhcpv4.DHCPv4, address *net.IPNet) []*netlink.Route {
	told := ack.ClasslessStaticRoute()
	if routers := ack.Router(); len(told) == 0 && len(routers) > 0 {
		told = []*dhcpv4.Route{{Dest: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Router: routers[0]}}
	}
	var toLink, overRouter []*netlink.Route
	for _, r := range told {
		route := &netlink.Route{Dst: &net.IPNet{IP: r.Dest.IP.Mask(r.Dest.Mask), Mask: r.Dest.Mask}}
		if r.Router.IsUnspecified() {
			route.Scope = netlink.SCOPE_LINK
			toLink = append(toLink, route)
			continue
		}
		route.Gw = r.Router
		if !address.Contains(r.Router) {
			// Where a lease is for one address alone (/32), the router is on the link all the same. The
			// kernel refuses it unless it is told so.
			route.SetFlag(netlink.FLAG_ONLINK)
		}
		overRouter = append(overRouter, route)
	}
	return append(toLink, overRouter...)
}
