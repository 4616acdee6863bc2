package network

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// TestTheWayThroughATunnel: a private control plane behind a tunnel alone is not reached in memory,
// and neither is a name server there.
func TestTheWayThroughATunnel(t *testing.T) {
	t.Parallel()
	near := cable(t)
	// Not every kernel can make tunnels: this stands for one, with all but its kind.
	vpn := newLink(t, &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "wg0"}})
	for link, address := range map[netlink.Link]string{near: "192.0.2.7/24", vpn: "10.8.0.2/24"} {
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: prefixOf(address)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, destination := range []string{"203.0.113.0/24", "100.64.0.0/10"} {
		if err := addRoute(&agentv1.NetworkRoute{Link: "wg0", Destination: destination}); err != nil {
			t.Fatal(err)
		}
	}
	if err := addRoute(&agentv1.NetworkRoute{Link: "near", Gateway: "192.0.2.1"}); err != nil {
		t.Fatal(err)
	}
	for host, refused := range map[string]bool{
		"10.8.0.1": true, "100.100.100.100": true, "203.0.113.7": false, "192.0.2.99": false, "10.9.0.1": false,
	} {
		c := hostCapture(t, "near")
		for _, link := range []netlink.Link{named(t, "near"), &netlink.Wireguard{LinkAttrs: *named(t, "wg0").Attrs()}} {
			carried, err := c.link(link, nil)
			if err != nil {
				t.Fatal(err)
			}
			if carried != nil {
				c.network.Links = append(c.network.Links, carried)
			}
		}
		err := c.throughTunnel(t.Context(), host)
		if refused != (err != nil) || refused && !strings.Contains(err.Error(), host+", is reached through wg0 (wireguard), which is not there in memory") {
			t.Errorf("the control plane is %s: %v", host, err)
		}
		for server, want := range map[string]bool{
			"10.8.0.1": false, "192.0.2.7": false, "192.0.2.53": true, "198.51.100.53": true, "fe80::1%near": true, "fe80::1%wg0": false,
		} {
			if got := LeadsTo(c.network, netip.MustParseAddr(server)); got != want {
				t.Errorf("the way to %s leads over what is carried: %t", server, got)
			}
		}
	}
}
