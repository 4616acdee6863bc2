package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/vishvananda/netlink"
)

// dhcpWait is how long one interface may take to get a lease.
const dhcpWait = 20 * time.Second

// dhcp asks on every hardware interface that has a link, and takes what the first one gets.
func (a *applier) dhcp(ctx context.Context) error {
	for mac, link := range hardware() {
		if err := netlink.LinkSetUp(link); err != nil {
			a.log.Warn("a network interface cannot be brought up", slog.String("link", mac), slog.Any("err", err))
		}
	}
	await(ctx, carrierWait, func() bool { return len(linked()) == len(hardware()) })
	faults := []error{errors.New("the host has no network")}
	for _, link := range linked() {
		err := lease(ctx, link)
		if err == nil {
			a.log.Info("DHCP gave an address", slog.String("link", link.Attrs().Name))
			return nil
		}
		faults = append(faults, fmt.Errorf("DHCP on %s: %w", link.Attrs().Name, err))
	}
	return errors.Join(faults...)
}

// linked returns the hardware interfaces that have a link.
func linked() []netlink.Link {
	var found []netlink.Link
	for _, link := range hardware() {
		if carrier, err := os.ReadFile(filepath.Join(interfaces, link.Attrs().Name, "carrier")); err == nil && strings.TrimSpace(string(carrier)) == "1" {
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

// lease gets a lease for the interface and makes it as the answer says.
func lease(ctx context.Context, link netlink.Link) error {
	ctx, cancel := context.WithTimeout(ctx, dhcpWait)
	defer cancel()
	client, err := nclient4.New(link.Attrs().Name)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	granted, err := client.Request(ctx, dhcpv4.WithOption(dhcpv4.OptParameterRequestList(wantedOptions...)))
	if err != nil {
		return err
	}
	return take(link, granted.ACK)
}

// take makes address, routes and name servers of an answer.
func take(link netlink.Link, ack *dhcpv4.DHCPv4) error {
	mask := ack.SubnetMask()
	if mask == nil {
		mask = ack.YourIPAddr.DefaultMask()
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: ack.YourIPAddr, Mask: mask}}
	if err := netlink.AddrReplace(link, address); err != nil {
		return fmt.Errorf("add the address %s: %w", address.IPNet, err)
	}
	for _, route := range leasedRoutes(ack, address.IPNet) {
		route.LinkIndex = link.Attrs().Index
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("add the route to %s over %s: %w", route.Dst, route.Gw, err)
		}
	}
	var text strings.Builder
	for _, server := range ack.DNS() {
		_, _ = fmt.Fprintf(&text, "nameserver %s\n", server)
	}
	if text.Len() > 0 {
		return os.WriteFile("/etc/resolv.conf", []byte(text.String()), 0o644) //nolint:gosec // as on every host
	}
	return nil
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
