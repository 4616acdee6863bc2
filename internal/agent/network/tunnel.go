package network

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// tunnels are the kinds of interfaces, as netlink names them, that stand for a way to another host
// through a program or a protocol of the old system.
var tunnels = []string{"wireguard", "tuntap", "gre", "ip6gre", "ipip", "sit", "ip6tnl", "vti", "vti6", "xfrm"}

// throughTunnel fails where the way to the other host leads through a tunnel alone. There is none
// in memory, and no router leads to the private addresses behind it. Public ones may be reached
// without it.
func (c *capture) throughTunnel(ctx context.Context, to string) error {
	through := ""
	for _, address := range addressesOf(ctx, to) {
		routes, err := netlink.RouteGet(address)
		if err != nil {
			continue
		}
		for _, route := range routes {
			if through = c.tunnels[route.LinkIndex]; through == "" || !private(address) {
				return nil
			}
		}
	}
	if through == "" {
		return nil
	}
	return fmt.Errorf("the control plane, %s, is reached through %s, which is not there in memory: "+
		"give machines an endpoint that they reach without it (initializer.endpoint)", to, through)
}

// carrierGrade are the addresses between providers and their customers (RFC 6598), which mesh
// networks use, too.
var carrierGrade = netip.MustParsePrefix("100.64.0.0/10")

func private(ip net.IP) bool {
	address, _ := netip.AddrFromSlice(ip)
	return ip.IsPrivate() || carrierGrade.Contains(address.Unmap())
}

// LeadsTo says whether the way to an address leads over an interface of that network of this host.
// It does not to the host's own addresses.
func LeadsTo(n *agentv1.Network, address netip.Addr) bool {
	over := func(name string) bool {
		return slices.ContainsFunc(n.GetLinks(), func(link *agentv1.NetworkLink) bool { return link.GetName() == name })
	}
	if zone := address.Zone(); zone != "" {
		return over(zone)
	}
	routes, err := netlink.RouteGet(address.Unmap().AsSlice())
	return err == nil && slices.ContainsFunc(routes, func(route netlink.Route) bool {
		link, err := netlink.LinkByIndex(route.LinkIndex)
		return err == nil && over(link.Attrs().Name)
	})
}
