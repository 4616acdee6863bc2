package network

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

const (
	// appearWait is how long the drivers may take to bring the interfaces.
	appearWait = 30 * time.Second
	// carrierWait is how long a link may take to come up before routes and DHCP need it.
	carrierWait = 15 * time.Second
	// routeWait is how long a router of IPv6 may take to tell of itself, and lookupWait a name server
	// to answer.
	routeWait  = 5 * time.Second
	lookupWait = 3 * time.Second
	poll       = 50 * time.Millisecond
)

// Apply makes the network on this host, which must be its own master and have none yet. Where
// nothing leads to the host, a name or an address, it asks for addresses by DHCP as well. What
// could not be made is logged. An error means that no interface has an address. What it returns is
// to be kept, after an error, too: an address may still come.
func Apply(ctx context.Context, n *agentv1.Network, to string, logger *slog.Logger) (*Kept, error) {
	a := &applier{network: n, log: logger, etc: "/etc"}
	kept := a.kept(to)
	return kept, unbroken(func() error { return a.apply(ctx, kept, to) })
}

func (a *applier) apply(ctx context.Context, kept *Kept, to string) error {
	if err := a.loopback(); err != nil {
		a.log.Warn("the loopback interface cannot be brought up", slog.Any("err", err))
	}
	a.writeFiles()
	a.awaitHardware(ctx)
	a.rename(hardware())
	for _, link := range order(a.network.GetLinks()) {
		a.remake(link)
	}
	a.awaitCarrier(ctx)
	a.routes(a.network.GetRoutes())
	if !a.reachable() {
		a.log.Warn("no address could be carried over; DHCP is asked")
		return kept.seek(ctx)
	}
	if await(ctx, routeWait, func() bool { return leads(ctx, to) }) {
		return nil
	}
	a.log.Warn("nothing that was carried over leads to the control plane; DHCP is asked", slog.String("host", to))
	if err := kept.seek(ctx); err != nil {
		a.log.Warn("DHCP did not help", slog.Any("err", err))
	}
	return nil
}

type applier struct {
	network *agentv1.Network
	log     *slog.Logger
	// forgotten are addresses that were carried over and are not ours any more, with the name of their
	// interface before them.
	forgotten []string
	// etc is the directory of the resolver's files.
	etc string
}

// kept returns what keeps the network, which has to lead to the host.
func (a *applier) kept(to string) *Kept {
	return &Kept{
		log: a.log, tenures: carriedTenures(a.network, time.Now()), links: a.askable, ask: ask, take: a.take, drop: drop,
		leads:        func(ctx context.Context) bool { return a.reachable() && leads(ctx, to) },
		leadsWithout: func(ctx context.Context, lease *net.IPNet) bool { return leadsWithout(ctx, to, lease) },
		up:           up, restore: a.restore, forget: a.forget,
	}
}

func (a *applier) loopback() error {
	link, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// writeFiles leaves what the resolver reads.
func (a *applier) writeFiles() {
	hosts := a.network.GetHosts()
	if len(hosts) == 0 {
		hosts = []byte("127.0.0.1 localhost\n::1 localhost\n")
	}
	for name, data := range map[string][]byte{"resolv.conf": a.network.GetResolvConf(), "hosts": hosts} {
		a.write(name, data)
	}
	if name := a.network.GetHostname(); name != "" {
		_ = unix.Sethostname([]byte(name))
	}
}

func (a *applier) write(name string, data []byte) {
	if err := os.WriteFile(filepath.Join(a.etc, name), data, 0o644); err != nil { //nolint:gosec // as on every host
		a.log.Warn("a file cannot be written", slog.Any("err", err))
	}
}

// awaitHardware waits for the interfaces that the old system had.
func (a *applier) awaitHardware(ctx context.Context) {
	missing := func() []string {
		present := whole(hardware())
		var names []string
		for _, link := range a.network.GetLinks() {
			if link.GetKind() == "" && match(present, link.GetMac()) == nil {
				names = append(names, link.GetName()+" ("+link.GetMac()+")")
			}
		}
		return names
	}
	if !await(ctx, appearWait, func() bool { return len(missing()) == 0 }) {
		a.log.Warn("network interfaces have not turned up", slog.String("missing", strings.Join(missing(), ", ")))
	}
}

// await polls until is says so, and returns whether it did in time.
func await(ctx context.Context, limit time.Duration, is func() bool) bool {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for !is() {
		select {
		case <-ticker.C:
		case <-deadline.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// match returns the interface that a MAC address belongs to, nil where there is none: best the one
// that has it and was made with it, else the one that has it, else the one that was made with it.
// An address that was set on the old system may outlast the jump in the hardware's registers.
func match(present []netlink.Link, mac string) netlink.Link {
	var best netlink.Link
	most := 0
	wanted, _ := net.ParseMAC(mac) // nil: of one that has none
	for _, link := range present {
		fits, attrs := 0, link.Attrs()
		if bytes.Equal(attrs.HardwareAddr, wanted) {
			fits += 2
		}
		if len(attrs.PermHWAddr) > 0 && bytes.Equal(attrs.PermHWAddr, wanted) {
			fits++
		}
		if fits > most {
			best, most = link, fits
		}
	}
	return best
}

// rename gives the hardware the names of the old system, no interface two of them. They may be
// those of one another, so whatever has one of them is renamed out of the way first.
func (a *applier) rename(present []netlink.Link) {
	names := map[int]string{} // by index
	carried := map[string]bool{}
	differ := false
	nameless := whole(present)
	for _, want := range a.network.GetLinks() {
		carried[want.GetName()] = true
		if link := match(nameless, want.GetMac()); want.GetKind() == "" && link != nil {
			nameless = slices.DeleteFunc(nameless, func(other netlink.Link) bool { return other == link })
			names[link.Attrs().Index] = want.GetName()
			differ = differ || link.Attrs().Name != want.GetName()
		}
	}
	if !differ {
		return
	}
	for _, link := range present {
		if attrs := link.Attrs(); carried[attrs.Name] {
			_ = change(link, unix.IFLA_IFNAME, fmt.Appendf(nil, "old%d", attrs.Index))
		}
	}
	for _, link := range present {
		if name := names[link.Attrs().Index]; name != "" {
			if err := change(link, unix.IFLA_IFNAME, []byte(name)); err != nil {
				a.log.Warn("a network interface keeps another name", slog.String("link", name), slog.Any("err", err))
			}
		}
	}
}

// order returns the links with those first that others stand on. A circle cannot be made, and ends
// in whatever order it was found in.
func order(links []*agentv1.NetworkLink) []*agentv1.NetworkLink {
	byName := map[string]*agentv1.NetworkLink{}
	for _, link := range links {
		byName[link.GetName()] = link
	}
	var ordered []*agentv1.NetworkLink
	seen := map[string]bool{}
	var visit func(link *agentv1.NetworkLink)
	visit = func(link *agentv1.NetworkLink) {
		if link == nil || seen[link.GetName()] {
			return
		}
		seen[link.GetName()] = true
		for _, lower := range link.GetLower() {
			visit(byName[lower])
		}
		ordered = append(ordered, link)
	}
	for _, link := range links {
		visit(link)
	}
	return ordered
}

// remake makes one interface as it was, as far as it can.
func (a *applier) remake(want *agentv1.NetworkLink) {
	if err := a.link(want); err != nil {
		a.log.Warn("a network interface is not as it was", slog.String("link", want.GetName()), slog.Any("err", err))
	}
}

// link makes one interface as it was.
func (a *applier) link(want *agentv1.NetworkLink) error {
	link, err := a.make(want)
	if err != nil {
		return err
	}
	if set := want.GetSetMac(); set != "" { // before it is up: some drivers refuse it then
		mac, _ := net.ParseMAC(set) // nil: the kernel refuses it
		if err := change(link, unix.IFLA_ADDRESS, mac); err != nil {
			a.log.Warn("a network interface keeps its own MAC address, because that of the old system cannot be set",
				slog.String("link", want.GetName()), slog.String("mac", set), slog.Any("err", err))
		}
	}
	var faults []error
	if want.GetMtu() > 0 { // also of a bridge that has taken that of a member
		faults = append(faults, wrap("set the MTU", change(link, unix.IFLA_MTU, nl.Uint32Attr(uint32(want.GetMtu())))))
	}
	passDeadLinks(want.GetName())
	faults = append(faults, wrap("bring it up", netlink.LinkSetUp(link)))
	for _, address := range want.GetAddresses() {
		faults = append(faults, wrap("add the address "+address.GetPrefix(), addAddress(link, address)))
	}
	return errors.Join(faults...)
}

// change changes an attribute of an interface that is there. The netlink package has a function for
// each attribute, and those cost the agent 4 KiB.
func change(link netlink.Link, attribute int, value []byte) error {
	request, which := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK), nl.NewIfInfomsg(unix.AF_UNSPEC)
	which.Index = int32(link.Attrs().Index)
	request.AddData(which)
	request.AddData(nl.NewRtAttr(attribute, value))
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func wrap(doing string, err error) error {
	if err == nil || errors.Is(err, unix.EEXIST) {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// make returns the interface, made anew where it has no hardware.
func (a *applier) make(want *agentv1.NetworkLink) (netlink.Link, error) {
	switch want.GetKind() {
	case "":
		return netlink.LinkByName(want.GetName())
	case "vlan":
		parent, err := netlink.LinkByName(first(want.GetLower()))
		if err != nil {
			return nil, fmt.Errorf("find what it stands on: %w", err)
		}
		return added(want, parent.Attrs().Index)
	case "bond", "bridge":
		link, err := added(want, 0)
		if err != nil {
			return nil, err
		}
		return link, a.enslave(link, want)
	}
	return nil, fmt.Errorf("its kind %q is not known", want.GetKind())
}

func first(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

func added(want *agentv1.NetworkLink, parent int) (netlink.Link, error) {
	if _, err := creation(want, parent).Execute(unix.NETLINK_ROUTE, 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("make it: %w", err)
	}
	return netlink.LinkByName(want.GetName())
}

// creation asks the kernel for a virtual interface; a VLAN stands on the parent. The netlink
// package has a function that knows every kind, and that costs the agent 80 KiB.
func creation(want *agentv1.NetworkLink, parent int) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	request.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(want.GetName())))
	if mac, err := net.ParseMAC(want.GetMac()); err == nil {
		request.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, mac))
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.ZeroTerminated(want.GetKind()))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	switch want.GetKind() {
	case "vlan":
		request.AddData(nl.NewRtAttr(unix.IFLA_LINK, nl.Uint32Attr(uint32(parent))))
		data.AddRtAttr(nl.IFLA_VLAN_ID, nl.Uint16Attr(uint16(want.GetVlanId())))
		if protocol := want.GetVlanProtocol(); protocol != 0 { // the kernel takes 802.1Q otherwise
			data.AddRtAttr(nl.IFLA_VLAN_PROTOCOL, binary.BigEndian.AppendUint16(nil, uint16(protocol)))
		}
	case "bond":
		bond := want.GetBond()
		mode := netlink.BondMode(bond.GetMode())
		data.AddRtAttr(nl.IFLA_BOND_MODE, nl.Uint8Attr(uint8(mode)))
		data.AddRtAttr(nl.IFLA_BOND_MIIMON, nl.Uint32Attr(uint32(max(100, bond.GetMiimonMs()))))
		if mode == netlink.BOND_MODE_802_3AD {
			data.AddRtAttr(nl.IFLA_BOND_AD_LACP_RATE, nl.Uint8Attr(uint8(bond.GetLacpRate())))
		}
		if mode == netlink.BOND_MODE_802_3AD || mode == netlink.BOND_MODE_BALANCE_XOR {
			data.AddRtAttr(nl.IFLA_BOND_XMIT_HASH_POLICY, nl.Uint8Attr(uint8(bond.GetXmitHashPolicy())))
		}
	}
	request.AddData(info)
	return request
}

// enslave puts the interfaces that are there under a master. A member of a bond alone must be down
// for that: it loses its IPv6 addresses then, and so do the VLANs on it. One that cannot join is
// missed, and the master is made with the others.
func (a *applier) enslave(master netlink.Link, want *agentv1.NetworkLink) error {
	found := false
	for _, name := range want.GetLower() {
		link, err := netlink.LinkByName(name)
		if err != nil {
			continue // such as the interface of a virtual machine
		}
		if want.GetKind() == "bond" {
			err = netlink.LinkSetDown(link)
		}
		err = errors.Join(err, change(link, unix.IFLA_MASTER, nl.Uint32Attr(uint32(master.Attrs().Index))), netlink.LinkSetUp(link))
		if err = wrap("add "+name+" to it", err); err != nil {
			a.log.Warn("a network interface lacks a member", slog.String("link", want.GetName()), slog.Any("err", err))
		} else {
			found = true
		}
	}
	if !found {
		return errors.New("none of its members could be added")
	}
	return nil
}

func addAddress(link netlink.Link, address *agentv1.NetworkAddress) error {
	parsed, err := netlink.ParseAddr(address.GetPrefix())
	if err != nil {
		return err
	}
	if address.GetPeer() != "" {
		if parsed.Peer, err = netlink.ParseIPNet(address.GetPeer()); err != nil {
			return err
		}
	}
	if parsed.IP.To4() == nil {
		parsed.Flags |= unix.IFA_F_NODAD // it was ours a moment ago
	}
	if address.GetDeprecated() {
		parsed.ValidLft = math.MaxUint32 // for ever; with no time for which it is preferred
	}
	return netlink.AddrReplace(link, parsed)
}

// awaitCarrier waits until every interface with addresses has a link.
func (a *applier) awaitCarrier(ctx context.Context) {
	waiting := func() string {
		for _, want := range a.network.GetLinks() {
			link, err := netlink.LinkByName(want.GetName())
			if err == nil && len(want.GetAddresses()) > 0 && down(link) {
				return want.GetName()
			}
		}
		return ""
	}
	if !await(ctx, carrierWait, func() bool { return waiting() == "" }) {
		a.log.Warn("a network interface has no link", slog.String("link", waiting()))
	}
}

// reachable says whether an interface that leads out has an address that reaches beyond its link.
func (a *applier) reachable() bool {
	links, err := netlink.LinkList()
	if err != nil {
		return false
	}
	for _, link := range links {
		if link.Attrs().Flags&net.FlagLoopback != 0 || down(link) {
			continue
		}
		addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			continue
		}
		for _, address := range addresses {
			if address.Scope == int(netlink.SCOPE_UNIVERSE) {
				return true
			}
		}
	}
	return false
}
