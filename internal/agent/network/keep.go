package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

const (
	// keepEvery is how often Keep looks whether there is something to do.
	keepEvery = 5 * time.Second
	// tryFor is how long an address from DHCP has to lead to the control plane before the next
	// interface is asked, and askAgain the pause after nobody has answered.
	tryFor   = time.Minute
	askAgain = 10 * time.Second
	// forEver is a lease time that never ends (RFC 2131, section 3.3).
	forEver = 0xffffffff * time.Second
	// leaseUntold is taken for the time of a lease whose server does not tell it.
	leaseUntold = time.Hour
)

// Kept is the network that Apply has made. One goroutine at a time may use it.
type Kept struct {
	log *slog.Logger
	// tenures are the IPv4 addresses that are not for ever, by the name of their interface.
	tenures map[string]tenure
	// sought is the interface that DHCP has made the way to the control plane; "": what was carried
	// over is. before is the tenure that the interface had until then. tried is the last one that was
	// asked for that, and nextTry when the next one is.
	sought, tried string
	before        tenure
	nextTry       time.Time
	// returned says that what was carried over has had, or has until nextTry, another chance: it leads
	// to the control plane again.
	returned bool

	// leads says whether something leads to the control plane, and leadsWithout whether it does
	// without the address that DHCP gave and its routes. up says whether an interface has a link.
	// links returns the interfaces that DHCP may be asked on. ask asks on one, where it had the
	// address that is not nil. take makes what the answer says in the place of what there was.
	leads        func(ctx context.Context) bool
	leadsWithout func(ctx context.Context, lease *net.IPNet) bool
	up           func(link string) bool
	links        func(ctx context.Context) []string
	ask          func(ctx context.Context, link string, had *net.IPNet) (*dhcpv4.DHCPv4, error)
	take         func(link string, before tenure, ack *dhcpv4.DHCPv4) error
	// drop takes back what an answer has made. restore makes again what was carried over on the
	// interface, without what was forgotten: an address that its server has given up for another one.
	drop    func(link string, before tenure)
	restore func(link string)
	forget  func(link string, address *net.IPNet)
}

// tenure is an address for a time.
type tenure struct {
	address *net.IPNet
	// next is when DHCP is asked whether the address may stay, and end until when it may without.
	next, end time.Time
	// metric is that of the default route that goes with the address.
	metric int
	// ack is the answer that gave the address; nil: it was carried over.
	ack *dhcpv4.DHCPv4
}

// carriedTenures are those of the IPv4 addresses that the old system had for a time. An interface
// has one: a second one is kept as it is.
func carriedTenures(n *agentv1.Network, now time.Time) map[string]tenure {
	found := map[string]tenure{}
	for _, link := range n.GetLinks() {
		for _, address := range link.GetAddresses() {
			ip, prefix, err := net.ParseCIDR(address.GetPrefix())
			if err != nil || ip.To4() == nil || address.GetLifetimeMs() <= 0 {
				continue
			}
			if _, second := found[link.GetName()]; second {
				break
			}
			life := time.Duration(address.GetLifetimeMs()) * time.Millisecond
			t := tenure{address: &net.IPNet{IP: ip, Mask: prefix.Mask}, next: now.Add(life / 2), end: now.Add(life)}
			for _, route := range n.GetRoutes() {
				if route.GetLink() == link.GetName() && route.GetDestination() == "" && !route.GetIpv6() {
					t.metric = int(uint32(route.GetMetric()))
				}
			}
			found[link.GetName()] = t
		}
	}
	return found
}

// Keep keeps the network until ctx ends. It asks DHCP for an address whenever half the life of one
// is over, of those that DHCP gave and of those that the old system had from there. While nothing
// that was carried over leads to the control plane, and until the agent is admitted, it asks on one
// interface after the other, again and again: a switch may pass nothing for the first half minute.
//
// DHCP is the way out, not a better network. When what was carried over leads to the control plane
// after all, such as by a link that came late, Keep takes back what DHCP gave. A way by which the
// agent was admitted is left alone for as long as it has a link. If the agent is not admitted by
// what was carried over either, DHCP is asked again, and then stays.
func (k *Kept) Keep(ctx context.Context, admitted func() bool) {
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		err := unbroken(func() error {
			k.look(ctx, admitted())
			return nil
		})
		if err != nil {
			k.log.Error("the network is looked at again", slog.Any("err", err))
		}
	}
}

// unbroken turns a panic into an error. What a server sends has any form, and the agent is the
// first process of the machine: a panic would take the kernel down.
func unbroken(do func() error) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("there is a fault in the agent: %v", fault)
		}
	}()
	return do()
}

// look does what there is to do now.
func (k *Kept) look(ctx context.Context, admitted bool) {
	k.renew(ctx)
	switch {
	case k.sought != "" && (!admitted || !k.up(k.sought)) && k.carriedLeads(ctx):
		k.log.Info("what was carried over leads to the control plane again; what DHCP gave is taken back", slog.String("link", k.sought))
		k.giveBack()
		k.returned, k.nextTry = true, time.Now().Add(tryFor)
	case !admitted && !time.Now().Before(k.nextTry) && (k.sought != "" || k.returned || !k.leads(ctx)):
		if err := k.seek(ctx); err != nil {
			k.log.Warn("DHCP is asked again", slog.Any("err", err))
		}
	}
}

// carriedLeads says whether what was carried over leads to the control plane, and has not had its
// chance since it does.
func (k *Kept) carriedLeads(ctx context.Context) bool {
	if !k.leadsWithout(ctx, k.tenures[k.sought].address) {
		k.returned = false
	} else if !k.returned {
		return true
	}
	return false
}

// giveBack takes back what DHCP gave on the interface that was sought. A lease that it had before
// stays, and one that was carried over is renewed as before.
func (k *Kept) giveBack() {
	name, t := k.sought, k.tenures[k.sought]
	k.sought = ""
	same := k.before.has(t.address)
	if same && k.before.ack != nil {
		return
	}
	k.drop(name, t)
	delete(k.tenures, name)
	if same {
		k.before.next, k.before.end = t.next, t.end
		k.tenures[name] = k.before
	}
	k.restore(name)
}

// seek asks on one interface after the other, beginning behind the one that was asked last, and
// takes what the first one gets.
func (k *Kept) seek(ctx context.Context) error {
	faults := []error{errors.New("the host has no network")}
	names := k.links(ctx)
	slices.Sort(names)
	behind, _ := slices.BinarySearch(names, k.tried+"\x00")
	for _, name := range append(names[behind:], names[:behind]...) {
		k.tried = name
		had := k.tenures[name]
		before := had
		if had.ack == nil {
			before.metric = 0 // the way has to come before one that leads nowhere
		}
		ack, err := k.request(ctx, name, before.address)
		if err == nil {
			if k.sought != "" && k.sought != name {
				k.giveBack()
			}
			err = k.settle(name, before, ack)
		}
		if err == nil {
			if k.sought == "" {
				k.before = had
			}
			k.sought, k.nextTry = name, time.Now().Add(tryFor)
			return nil
		}
		faults = append(faults, fmt.Errorf("DHCP on %s: %w", name, err))
	}
	k.nextTry = time.Now().Add(askAgain)
	return errors.Join(faults...)
}

// renew asks for the addresses whose time has come. One that nobody answers for is kept, even when
// its life is over: another machine can have it only from a server that answers.
func (k *Kept) renew(ctx context.Context) {
	for _, name := range slices.Sorted(maps.Keys(k.tenures)) {
		t := k.tenures[name]
		if t.next.IsZero() || time.Now().Before(t.next) {
			continue
		}
		ack, err := k.request(ctx, name, t.address)
		if err == nil && t.ack == nil && t.has(leased(ack)) {
			k.tenures[name] = until(t, ack) // with the routes of the old system
			continue
		}
		if err == nil {
			err = k.settle(name, t, ack)
		}
		if err != nil {
			t.next = time.Now().Add(max(time.Minute, time.Until(t.end)/2))
			k.tenures[name] = t
			k.log.Warn("DHCP has not renewed an address", slog.String("link", name), slog.String("address", t.address.String()),
				slog.Time("until", t.end), slog.Any("err", err))
		}
	}
}

// request asks, and refuses an answer whose address nobody could use.
func (k *Kept) request(ctx context.Context, link string, had *net.IPNet) (*dhcpv4.DHCPv4, error) {
	ack, err := k.ask(ctx, link, had)
	if err != nil {
		return nil, err
	}
	address := leased(ack)
	if !address.IP.IsGlobalUnicast() || prefixLength(address) == 0 { // also of a mask with gaps
		return nil, fmt.Errorf("the address %s with the mask %s makes no sense", address.IP, address.Mask)
	}
	return ack, nil
}

// settle makes what an answer says.
func (k *Kept) settle(name string, before tenure, ack *dhcpv4.DHCPv4) error {
	if err := k.take(name, before, ack); err != nil {
		return err
	}
	now := tenure{address: leased(ack), metric: before.metric, ack: ack}
	if !before.has(now.address) {
		if before.address != nil {
			k.forget(name, before.address)
		}
		k.log.Info("DHCP gave an address", slog.String("link", name), slog.String("address", now.address.String()))
	}
	k.tenures[name] = until(now, ack)
	return nil
}

// until returns the tenure with the time that an answer gives it.
func until(t tenure, ack *dhcpv4.DHCPv4) tenure {
	t.next, t.end = time.Time{}, time.Time{}
	if life := ack.IPAddressLeaseTime(leaseUntold); life < forEver {
		t.next, t.end = time.Now().Add(life/2), time.Now().Add(life)
	}
	return t
}

func (t tenure) has(address *net.IPNet) bool {
	return t.address != nil && t.address.String() == address.String()
}

// leased returns the address that an answer gives.
func leased(ack *dhcpv4.DHCPv4) *net.IPNet {
	mask := ack.SubnetMask()
	if mask == nil {
		mask = ack.YourIPAddr.DefaultMask()
	}
	return &net.IPNet{IP: ack.YourIPAddr, Mask: mask}
}
