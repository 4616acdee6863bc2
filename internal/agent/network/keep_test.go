package network

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// wire is what DHCP meets on the interfaces of a Kept whose host is imaginary.
type wire struct {
	// answers are what the interfaces get from when on, and asked when they were asked, in time since
	// the start.
	answers map[string]*dhcpv4.DHCPv4
	opens   time.Duration
	leads   bool
	// unplugged says that no interface has a link any more.
	unplugged bool
	// carried says from when on what was carried over leads to the control plane; 0: never.
	carried time.Duration
	start   time.Time
	asked   []string
	taken   []string
}

func (w *wire) kept(n *agentv1.Network) *Kept {
	w.start = time.Now()
	return &Kept{
		log: slog.New(slog.DiscardHandler), tenures: carriedTenures(n, time.Now()),
		leads:        func(context.Context) bool { return w.leads },
		leadsWithout: func(context.Context, *net.IPNet) bool { return w.carried > 0 && time.Since(w.start) >= w.carried },
		links:        func(context.Context) []string { return []string{"eth1", "eth0"} },
		ask: func(_ context.Context, link string, had *net.IPNet) (*dhcpv4.DHCPv4, error) {
			time.Sleep(dhcpWait)
			text := link
			if had != nil {
				text += " had " + had.String()
			}
			w.asked = append(w.asked, text+" after "+time.Since(w.start).Truncate(time.Minute).String())
			if answer := w.answers[link]; answer != nil && time.Since(w.start) >= w.opens {
				return answer, nil
			}
			return nil, errors.New("nobody answers")
		},
		take: func(link string, before tenure, ack *dhcpv4.DHCPv4) error {
			w.taken = append(w.taken, link+" "+ack.YourIPAddr.String())
			return nil
		},
		drop:    func(link string, before tenure) { w.taken = append(w.taken, link+" dropped "+before.address.String()) },
		up:      func(string) bool { return !w.unplugged },
		restore: func(link string) { w.taken = append(w.taken, link+" restored") },
		forget:  func(link string, address *net.IPNet) { w.taken = append(w.taken, link+" forgot "+address.String()) },
	}
}

// keep keeps the network for so long. The agent is admitted from an instant on; 0: never.
func (w *wire) keep(t *testing.T, k *Kept, long, admitted time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	k.Keep(ctx, func() bool { return admitted > 0 && time.Since(w.start) >= admitted })
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n%q, want\n%q", what, got, want)
	}
}

// A switch that passes nothing at first does not strand the machine: DHCP is asked again until
// somebody answers, and until the agent is admitted.
func TestAskedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &wire{opens: 5 * time.Minute, answers: map[string]*dhcpv4.DHCPv4{"eth1": acknowledge(t, "192.0.2.7/24", nil)}}
		k := w.kept(nil)
		if err := k.seek(t.Context()); err == nil {
			t.Fatal("nobody answers, and there is no error")
		}
		w.keep(t, k, 20*time.Minute, 5*time.Minute+40*time.Second)
		if len(w.asked) < 8 {
			t.Errorf("it was asked only %q", w.asked)
		}
		expect(t, "what was taken", w.taken, "eth1 192.0.2.7")
	})
}

// An address that leads nowhere gives way to one on another interface, and what was carried over
// and leads to the control plane is left alone.
func TestNextInterface(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &wire{answers: map[string]*dhcpv4.DHCPv4{"eth0": acknowledge(t, "192.0.2.7/24", nil), "eth1": acknowledge(t, "198.51.100.7/24", nil)}}
		k := w.kept(nil)
		if err := k.seek(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.leads = true // over what DHCP gave
		w.keep(t, k, 10*time.Minute, 100*time.Second)
		expect(t, "what was taken", w.taken, "eth0 192.0.2.7", "eth0 dropped 192.0.2.7/24", "eth0 restored", "eth1 198.51.100.7")

		w = &wire{leads: true}
		w.keep(t, w.kept(nil), time.Hour, 0)
		expect(t, "what was asked", w.asked)
	})
}

// An answer whose address nobody can use is none, and neither is one that brings a fault of the
// agent to light: the next interface is asked.
func TestOddAnswers(t *testing.T) {
	t.Parallel()
	good := acknowledge(t, "198.51.100.7/24", nil)
	odd := func(address string, mask ...byte) *dhcpv4.DHCPv4 {
		ack := acknowledge(t, address, nil)
		ack.UpdateOption(dhcpv4.OptSubnetMask(mask))
		return ack
	}
	for name, answer := range map[string]*dhcpv4.DHCPv4{
		"a mask with gaps":          odd("192.0.2.7/24", 255, 0, 255, 0),
		"a mask of everything":      odd("192.0.2.7/24", 0, 0, 0, 0),
		"no address":                odd("0.0.0.0/24", 255, 255, 255, 0),
		"an address for all":        odd("255.255.255.255/24", 255, 255, 255, 0),
		"an address of a group":     odd("224.0.0.1/24", 255, 255, 255, 0),
		"an address of the machine": odd("127.0.0.1/24", 255, 0, 0, 0),
	} {
		synctest.Test(t, func(t *testing.T) {
			w := &wire{answers: map[string]*dhcpv4.DHCPv4{"eth0": answer, "eth1": good}}
			k := w.kept(nil)
			if err := k.seek(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			expect(t, name+": what was taken", w.taken, "eth1 198.51.100.7")
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w := &wire{answers: map[string]*dhcpv4.DHCPv4{"eth1": good}}
		k := w.kept(nil)
		take := k.take
		k.take = func(link string, before tenure, ack *dhcpv4.DHCPv4) error {
			if len(w.asked) < 4 {
				panic("index out of range")
			}
			return take(link, before, ack)
		}
		w.keep(t, k, 10*time.Minute, 0)
		expect(t, "after a fault: what was taken", slices.Compact(w.taken), "eth1 198.51.100.7")
	})
}

// What the old system had from DHCP is renewed at half of its life; an address for ever, and one of
// IPv6, is not. Another address takes its place, and is renewed in turn.
func TestCarriedLease(t *testing.T) {
	t.Parallel()
	hours := func(n int64) int64 { return n * time.Hour.Milliseconds() }
	carried := &agentv1.Network{Links: []*agentv1.NetworkLink{
		{Name: "eth0", Addresses: []*agentv1.NetworkAddress{
			{Prefix: "2001:db8::7/64", LifetimeMs: hours(1)}, {Prefix: "192.0.2.7/24", LifetimeMs: hours(10)},
		}},
		{Name: "eth1", Addresses: []*agentv1.NetworkAddress{{Prefix: "198.51.100.7/24"}}},
	}}
	life := dhcpv4.OptIPAddressLeaseTime(4 * time.Hour)
	synctest.Test(t, func(t *testing.T) {
		w := &wire{leads: true, answers: map[string]*dhcpv4.DHCPv4{"eth0": acknowledge(t, "192.0.2.7/24", []dhcpv4.Option{life})}}
		w.keep(t, w.kept(carried), 8*time.Hour, time.Second)
		expect(t, "the same address: what was asked", w.asked, "eth0 had 192.0.2.7/24 after 5h0m0s", "eth0 had 192.0.2.7/24 after 7h0m0s")
		expect(t, "the same address: what was taken", w.taken)
	})
	synctest.Test(t, func(t *testing.T) {
		w := &wire{leads: true, answers: map[string]*dhcpv4.DHCPv4{"eth0": acknowledge(t, "192.0.2.8/24", []dhcpv4.Option{life})}}
		w.keep(t, w.kept(carried), 8*time.Hour, time.Second)
		expect(t, "another address: what was asked", w.asked, "eth0 had 192.0.2.7/24 after 5h0m0s", "eth0 had 192.0.2.8/24 after 7h0m0s")
		expect(t, "another address: what was taken", w.taken, "eth0 192.0.2.8", "eth0 forgot 192.0.2.7/24", "eth0 192.0.2.8")
	})
	synctest.Test(t, func(t *testing.T) {
		w := &wire{leads: true}
		w.keep(t, w.kept(carried), 11*time.Hour, time.Second)
		if len(w.asked) < 30 || len(w.asked) > 100 {
			t.Errorf("nobody answers: asked %d times: %q", len(w.asked), w.asked)
		}
		expect(t, "nobody answers: what was taken", w.taken)
	})
}

// The kernel gives an address up for another one, with its routes and the metric of the old one,
// and tells the lifetime of the one that it had.
func TestAnotherAddress(t *testing.T) {
	t.Parallel()
	near := cable(t)
	router := []dhcpv4.Option{dhcpv4.OptRouter(net.IPv4(192, 0, 2, 1))}
	old := netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 7), Mask: net.CIDRMask(24, 32)}, ValidLft: 3600, PreferedLft: 3600}
	if err := netlink.AddrAdd(near, &old); err != nil {
		t.Fatal(err)
	}
	route := &netlink.Route{LinkIndex: near.Attrs().Index, Dst: prefix("0.0.0.0/0"), Gw: net.IPv4(192, 0, 2, 1), Priority: 100}
	if err := netlink.RouteAdd(route); err != nil {
		t.Fatal(err)
	}
	addresses, err := new(capture).addresses(near)
	if err != nil || len(addresses) != 1 || addresses[0].GetLifetimeMs() < 3590_000 || addresses[0].GetLifetimeMs() > 3600_000 {
		t.Fatalf("captured: %v, %v", addresses, err)
	}
	carried := carriedTenures(&agentv1.Network{
		Links:  []*agentv1.NetworkLink{{Name: "near", Addresses: addresses}},
		Routes: []*agentv1.NetworkRoute{{Link: "near", Gateway: "192.0.2.1", Metric: 100}},
	}, time.Now())
	if err := take("near", carried["near"], acknowledge(t, "192.0.2.8/24", router)); err != nil {
		t.Fatal(err)
	}
	state := func() (text []string) {
		t.Helper()
		list, err := netlink.AddrList(near, netlink.FAMILY_V4)
		if err != nil {
			t.Fatal(err)
		}
		for _, address := range list {
			text = append(text, address.IPNet.String())
		}
		routes, err := netlink.RouteList(near, netlink.FAMILY_V4)
		if err != nil {
			t.Fatal(err)
		}
		for _, route := range routes {
			if route.Gw != nil {
				text = append(text, inWords(&route))
			}
		}
		return text
	}
	expect(t, "with the new address", state(), "192.0.2.8/24", "0.0.0.0/0 via 192.0.2.1")
	drop("near", tenure{address: prefixOf("192.0.2.8/24"), metric: 100, ack: acknowledge(t, "192.0.2.8/24", router)})
	expect(t, "dropped", state())
}

func prefixOf(text string) *net.IPNet {
	ip, network, err := net.ParseCIDR(text)
	if err != nil {
		panic(err)
	}
	return &net.IPNet{IP: ip, Mask: network.Mask}
}
