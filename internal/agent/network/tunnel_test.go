package network

import (
	"context"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// tunnelled is a host with a cable and what stands for a tunnel: not every kernel can make one.
func tunnelled(t *testing.T) *capture {
	t.Helper()
	near := cable(t)
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
	return c
}

// TestTheWayThroughATunnel: a control plane that is reached through a tunnel alone is not reached
// in memory. One that answers over the cable is, whatever is in its way now.
func TestTheWayThroughATunnel(t *testing.T) {
	t.Parallel()
	c := tunnelled(t)
	for host, answers := range map[string]bool{"10.8.0.1": false, "203.0.113.7": false, "100.100.100.100": true, "192.0.2.99": false, "10.9.0.1": false} {
		asked := ""
		c.answers = func(_ context.Context, link, address string) bool {
			asked += link + " " + address
			return answers
		}
		err := c.throughTunnel(t.Context(), host, "443")
		through := !strings.HasPrefix(host, "192.0.2.") && host != "10.9.0.1"
		if want := "near " + host + ":443"; (asked == want) != through || !through && asked != "" {
			t.Errorf("%s: asked %q", host, asked)
		}
		refused := through && !answers
		if refused != (err != nil) || refused && !strings.Contains(err.Error(), host+", is reached through wg0 (wireguard) alone") {
			t.Errorf("the control plane is %s: %v", host, err)
		}
	}
}

// TestNameServersBehindATunnel: a public one is asked without it, a private one and the host itself
// are not.
func TestNameServersBehindATunnel(t *testing.T) {
	t.Parallel()
	c := tunnelled(t)
	near := named(t, "near").Attrs().Index
	if Asks(c.network, netip.MustParseAddr("203.0.113.53")) {
		t.Error("a public one is asked though no default route is carried")
	}
	c.network.Routes = []*agentv1.NetworkRoute{{Link: "near", Gateway: "192.0.2.1"}, {Link: "near", Destination: "2001:db8::/32", Ipv6: true}}
	for server, want := range map[string]bool{
		"10.8.0.1": false, "100.100.100.100": false, "203.0.113.53": true, "192.0.2.7": false, "192.0.2.53": true, "198.51.100.53": true,
		"::ffff:192.0.2.53": true, "fe80::1%near": true, "fe80::1%wg0": false,
	} {
		if got := Asks(c.network, netip.MustParseAddr(server)); got != want {
			t.Errorf("%s is asked: %t", server, got)
		}
	}
	if name := interfaceName(strconv.Itoa(near)); name != "near" {
		t.Errorf("the interface %d is %s", near, name)
	}
}

// TestAnswersOver asks a listener at the other end of a cable, which is another host.
func TestAnswersOver(t *testing.T) {
	t.Parallel()
	near := cable(t)
	if err := netlink.AddrAdd(near, &netlink.Addr{IPNet: prefixOf("192.0.2.7/24")}); err != nil {
		t.Fatal(err)
	}
	other := newLink(t, &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "other"}})
	if err := netlink.AddrAdd(other, &netlink.Addr{IPNet: prefixOf("10.8.0.2/24")}); err != nil {
		t.Fatal(err)
	}
	port := elsewhere(t, "far", "192.0.2.1/24")
	for link, want := range map[string]bool{"near": true, "other": false, "none": false} {
		if got := answersOver(t.Context(), link, net.JoinHostPort("192.0.2.1", port)); got != want {
			t.Errorf("over %s it answers: %t", link, got)
		}
	}
	// A label has 63 letters at most, so nobody is asked.
	if !answersOver(t.Context(), "near", strings.Repeat("x", 64)+".example:443") {
		t.Error("a name that is not found counts as one that does not answer")
	}
}

// elsewhere moves an interface to a network of its own, and returns a port where somebody listens
// there.
func elsewhere(t *testing.T, name, address string) (port string) {
	t.Helper()
	type made struct {
		namespace int
		err       error
	}
	opened, moved, ready := make(chan made), make(chan struct{}), make(chan error)
	var listener net.Listener
	go func() {
		runtime.LockOSThread() // for ever: nothing else may run in that namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		namespace := -1
		if err == nil {
			namespace, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		opened <- made{namespace, err}
		<-moved
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.AddrAdd(link, &netlink.Addr{IPNet: prefixOf(address)})
		}
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err == nil {
			listener, err = new(net.ListenConfig).Listen(context.Background(), "tcp", strings.SplitN(address, "/", 2)[0]+":0")
		}
		ready <- err
	}()
	to := <-opened
	if to.err != nil {
		t.Fatal(to.err)
	}
	err := netlink.LinkSetNsFd(named(t, name), to.namespace)
	close(moved)
	if ended := <-ready; err != nil || ended != nil {
		t.Fatal(err, ended)
	}
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		_ = unix.Close(to.namespace)
	})
	_, port, err = net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
