package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// dialWait is how long another host may take to answer over one interface.
var dialWait = 3 * time.Second

// tunnels are the kinds of interfaces, as netlink names them, that stand for a way to another host
// through a program or a protocol of the old system.
var tunnels = []string{
	"wireguard", "amneziawg", "tuntap", "ovpn", "ovpn-dco", "ppp", "gre", "gretap", "ip6gre", "ip6gretap", "ipip", "sit", "ip6tnl", "vti", "vti6", "xfrm",
}

// throughTunnel fails where the way to the other host leads through tunnels, of which there are
// none in memory, and nobody answers there over what is carried. A tunnel that leads everywhere, or
// whose routes come before those of the main table, is in the way of hosts that answer without it.
func (c *capture) throughTunnel(ctx context.Context, host, port string) error {
	through := ""
	for _, address := range addressesOf(ctx, host) {
		routes, err := netlink.RouteGet(address)
		if err != nil {
			continue
		}
		for _, route := range routes {
			if through = c.tunnels[route.LinkIndex]; through == "" {
				return nil
			}
		}
	}
	if through == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*dialWait)
	defer cancel()
	for _, link := range c.network.GetLinks() {
		if len(link.GetAddresses()) > 0 && c.answers(ctx, link.GetName(), net.JoinHostPort(host, port)) {
			return nil
		}
	}
	return fmt.Errorf("the control plane, %s, is reached through %s alone, which is not there in memory: "+
		"give machines an endpoint that they reach without it (initializer.endpoint)", host, through)
}

// answersOver says whether another host takes a connection over an interface of this one. Of a host
// whose name is not found, nobody knows.
func answersOver(ctx context.Context, link, address string) bool {
	dialer := net.Dialer{Timeout: dialWait, Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), link) }), err)
	}}
	connection, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		var unknown *net.DNSError
		return errors.As(err, &unknown)
	}
	_ = connection.Close()
	return true
}

// carrierGrade are the addresses between providers and their customers (RFC 6598), which mesh
// networks use, too.
var carrierGrade = netip.MustParsePrefix("100.64.0.0/10")

// Asks says whether the network of this host leads to a name server: over one of its interfaces, or
// by a default route to a public address, whatever leads there now. It does not to the host's own
// addresses.
func Asks(n *agentv1.Network, server netip.Addr) bool {
	over := func(name string) bool {
		return slices.ContainsFunc(n.GetLinks(), func(link *agentv1.NetworkLink) bool { return link.GetName() == name })
	}
	server = server.Unmap()
	if zone := server.Zone(); zone != "" {
		return over(interfaceName(zone))
	}
	routes, err := netlink.RouteGet(server.AsSlice())
	return err == nil && slices.ContainsFunc(routes, func(route netlink.Route) bool {
		link, err := netlink.LinkByIndex(route.LinkIndex)
		if err != nil || link.Attrs().Flags&net.FlagLoopback != 0 {
			return false
		}
		public := !server.IsPrivate() && !carrierGrade.Contains(server)
		return over(link.Attrs().Name) || public && slices.ContainsFunc(n.GetRoutes(), func(r *agentv1.NetworkRoute) bool {
			return r.GetDestination() == "" && r.GetIpv6() == server.Is6()
		})
	})
}

// interfaceName returns the name of an interface that may be given by its number.
func interfaceName(zone string) string {
	if index, err := strconv.Atoi(zone); err == nil {
		if link, err := netlink.LinkByIndex(index); err == nil {
			return link.Attrs().Name
		}
	}
	return zone
}
