package network

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/insomniacslk/dhcp/dhcpv4/server4"
	"github.com/vishvananda/netlink"
)

// answers are what servers give. The routes are those that they make, in their order.
var answers = map[string]struct {
	address string
	options []dhcpv4.Option
	routes  []string
}{
	"an office": {
		"192.0.2.7/24",
		[]dhcpv4.Option{dhcpv4.OptRouter(net.IPv4(192, 0, 2, 1), net.IPv4(192, 0, 2, 2))},
		[]string{"0.0.0.0/0 via 192.0.2.1"},
	},
	"no router": {"192.0.2.7/24", nil, nil},
	"a cloud, one address alone": {
		"192.0.2.7/32",
		[]dhcpv4.Option{dhcpv4.OptRouter(net.IPv4(172, 31, 1, 1))},
		[]string{"0.0.0.0/0 via 172.31.1.1 onlink"},
	},
	"a cloud, classless routes in any order": {
		"192.0.2.7/32",
		[]dhcpv4.Option{
			dhcpv4.OptRouter(net.IPv4(192, 0, 2, 99)), // is not for who knows classless routes
			dhcpv4.OptClasslessStaticRoute(
				&dhcpv4.Route{Dest: prefix("0.0.0.0/0"), Router: net.IPv4(172, 31, 1, 1)},
				&dhcpv4.Route{Dest: prefix("172.31.1.1/32"), Router: net.IPv4zero},
			),
		},
		[]string{"172.31.1.1/32 link", "0.0.0.0/0 via 172.31.1.1 onlink"},
	},
	"a network with two routers": {
		"192.0.2.7/24",
		[]dhcpv4.Option{dhcpv4.OptClasslessStaticRoute(
			&dhcpv4.Route{Dest: prefix("0.0.0.0/0"), Router: net.IPv4(192, 0, 2, 1)},
			&dhcpv4.Route{Dest: &net.IPNet{IP: net.IPv4(10, 1, 2, 3), Mask: net.CIDRMask(12, 32)}, Router: net.IPv4(192, 0, 2, 2)},
		)},
		[]string{"0.0.0.0/0 via 192.0.2.1", "10.0.0.0/12 via 192.0.2.2"},
	},
}

func prefix(text string) *net.IPNet {
	_, network, err := net.ParseCIDR(text)
	if err != nil {
		panic(err)
	}
	return network
}

// acknowledge returns a server's answer as it was on the wire.
func acknowledge(tb testing.TB, address string, options []dhcpv4.Option) *dhcpv4.DHCPv4 {
	tb.Helper()
	ip, network, err := net.ParseCIDR(address)
	if err != nil {
		tb.Fatal(err)
	}
	modifiers := []dhcpv4.Modifier{dhcpv4.WithYourIP(ip), dhcpv4.WithNetmask(network.Mask)}
	for _, option := range options {
		modifiers = append(modifiers, dhcpv4.WithOption(option))
	}
	made, err := dhcpv4.New(modifiers...)
	if err != nil {
		tb.Fatal(err)
	}
	ack, err := dhcpv4.FromBytes(made.ToBytes())
	if err != nil {
		tb.Fatal(err)
	}
	return ack
}

// inWords tells a route.
func inWords(r *netlink.Route) string {
	text := r.Dst.String()
	if r.Gw == nil {
		return text + " link"
	}
	text += " via " + r.Gw.String()
	if r.Flags&int(netlink.FLAG_ONLINK) != 0 {
		text += " onlink"
	}
	return text
}

func TestLeasedRoutes(t *testing.T) {
	t.Parallel()
	for name, answer := range answers {
		ack := acknowledge(t, answer.address, answer.options)
		address := &net.IPNet{IP: ack.YourIPAddr, Mask: ack.SubnetMask()}
		var got []string
		for _, route := range leasedRoutes(ack, address) {
			got = append(got, inWords(route))
		}
		if !slices.Equal(got, answer.routes) {
			t.Errorf("%s: %q, want %q", name, got, answer.routes)
		}
	}
}

// packets are what a socket receives, of IPv4 each.
type packets struct {
	net.PacketConn
	left [][]byte
}

func (p *packets) ReadFrom(b []byte) (int, net.Addr, error) {
	if len(p.left) == 0 {
		return 0, nil, io.EOF
	}
	n := copy(b, p.left[0])
	p.left = p.left[1:]
	return n, nil, nil
}

// datagram is a packet to the port of DHCP clients whose header says that length.
func datagram(length uint16, content []byte) []byte {
	packet := append([]byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 255, 255, 255, 255}, 0, 67, 0, 68, 0, 0, 0, 0)
	binary.BigEndian.PutUint16(packet[2:], length)
	return append(packet, content...)
}

// A packet that says that it is shorter than its own headers, or longer than what has come, is
// passed over. The client reads packets in a goroutine of its own, where a panic ends the process.
func TestMalformedPacket(t *testing.T) {
	t.Parallel()
	socket := &packets{left: [][]byte{
		datagram(24, make([]byte, 18)), datagram(20, make([]byte, 18)), datagram(0, make([]byte, 18)), datagram(0xffff, make([]byte, 18)),
		datagram(30, []byte("ok")),
	}}
	got := make([]byte, 576)
	n, _, err := nclient4.NewBroadcastUDPConn(socket, &net.UDPAddr{Port: nclient4.ClientPort}).ReadFrom(got)
	if err != nil || string(got[:n]) != "ok" {
		t.Errorf("received %q, %v", got[:n], err)
	}
}

// FuzzLease: whatever comes on the wire is refused, or makes an address and routes.
func FuzzLease(f *testing.F) {
	f.Add(datagram(24, make([]byte, 18)))
	for _, answer := range answers {
		content := acknowledge(f, answer.address, answer.options).ToBytes()
		f.Add(datagram(uint16(28+len(content)), content))
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		content := make([]byte, nclient4.MaxMessageSize)
		n, _, err := nclient4.NewBroadcastUDPConn(&packets{left: [][]byte{packet}}, &net.UDPAddr{Port: nclient4.ClientPort}).ReadFrom(content)
		if err != nil {
			return
		}
		ack, err := dhcpv4.FromBytes(content[:n])
		if err != nil {
			return
		}
		k := &Kept{ask: func(context.Context, string, *net.IPNet) (*dhcpv4.DHCPv4, error) { return ack, nil }}
		if ack, err = k.request(t.Context(), "eth0", nil); err != nil {
			return
		}
		if ones, bits := leased(ack).Mask.Size(); ones == 0 || bits != 32 {
			t.Errorf("the address %v", leased(ack))
		}
		for _, route := range leasedRoutes(ack, leased(ack)) {
			if _, bits := route.Dst.Mask.Size(); bits != 32 || route.Dst.IP.To4() == nil {
				t.Errorf("the route %v", route)
			}
		}
		_, _ = ack.DNS(), until(tenure{}, ack)
	})
}

// cable makes the interfaces near and far, which are up and lead to one another, in a network
// namespace of its own.
func cable(t *testing.T) (near netlink.Link) {
	t.Helper()
	ownNetwork(t)
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far"}); err != nil {
		t.Fatal(err)
	}
	for _, end := range []string{"far", "near"} {
		link, err := netlink.LinkByName(end)
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			t.Fatal(err)
		}
		near = link
	}
	return near
}

// The kernel takes every answer, and its routes lead out.
func TestTake(t *testing.T) {
	t.Parallel()
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cable(t)
			if err := take("near", tenure{}, acknowledge(t, answer.address, answer.options)); err != nil {
				t.Fatal(err)
			}
			if got := leads(t.Context(), "198.51.100.7"); got != (len(answer.routes) > 0) {
				t.Errorf("it leads out: %t", got)
			}
		})
	}
}

// A server gives what it is asked for: classless routes only to who wants them more than a router.
func TestLease(t *testing.T) {
	t.Parallel()
	var wished atomic.Bool
	cable(t)
	server, err := server4.NewServer("far", nil, func(conn net.PacketConn, peer net.Addr, request *dhcpv4.DHCPv4) {
		modifiers := []dhcpv4.Modifier{
			dhcpv4.WithYourIP(net.IPv4(192, 0, 2, 7)), dhcpv4.WithNetmask(net.CIDRMask(32, 32)), dhcpv4.WithServerIP(net.IPv4(172, 31, 1, 1)),
			dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(172, 31, 1, 1))), dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer),
		}
		if request.MessageType() == dhcpv4.MessageTypeRequest {
			modifiers = append(modifiers, dhcpv4.WithMessageType(dhcpv4.MessageTypeAck))
		} else if request.RequestedIPAddress().Equal(net.IPv4(192, 0, 2, 9)) {
			wished.Store(true)
		}
		wanted := request.ParameterRequestList()
		for _, option := range wanted {
			if option.Code() == dhcpv4.OptionClasslessStaticRoute.Code() {
				modifiers = append(modifiers, dhcpv4.WithOption(dhcpv4.OptClasslessStaticRoute(
					&dhcpv4.Route{Dest: prefix("172.31.1.1/32"), Router: net.IPv4zero},
					&dhcpv4.Route{Dest: prefix("0.0.0.0/0"), Router: net.IPv4(172, 31, 1, 1)},
				)))
			}
			if option.Code() == dhcpv4.OptionRouter.Code() {
				break
			}
		}
		reply, err := dhcpv4.NewReplyFromRequest(request, modifiers...)
		if err == nil {
			_, err = conn.WriteTo(reply.ToBytes(), peer)
		}
		if err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	defer func() {
		_ = server.Close()
		<-served
	}()
	ack, err := ask(t.Context(), "near", &net.IPNet{IP: net.IPv4(192, 0, 2, 9), Mask: net.CIDRMask(24, 32)})
	if err == nil {
		err = take("near", tenure{}, ack)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !wished.Load() {
		t.Error("the server was not asked for the address that there was")
	}
	if !leads(t.Context(), "198.51.100.7") {
		t.Error("it does not lead out")
	}
}
