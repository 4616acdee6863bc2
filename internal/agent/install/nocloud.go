package install

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// networkConfig returns the network of the old system as cloud-init's network-config of version 2,
// which is that of netplan: nil where that network had no static address, nor any that stands on a
// VLAN or a bond, because then the image's own way, which is DHCP, is as good. What DHCP or a
// router gave is left to them, but for the metric of a default route of IPv4, where others have
// one. Interfaces with hardware are told by MAC address, and have the names that they had. An
// error beside a network-config, or beside none that is needed, says what is left out.
func networkConfig(n *agentv1.Network) ([]byte, error) {
	c := &netplan{servers: map[string][]string{}, network: &agentv1.Network{
		Links: slices.Clone(n.GetLinks()), Routes: n.GetRoutes(), ResolvConf: n.GetResolvConf(),
	}}
	c.wantAddressed()
	left := c.leaveOut()
	c.wantAddressed()
	needed, leased := false, false
	for _, link := range c.network.GetLinks() {
		leased = leased || slices.ContainsFunc(link.GetAddresses(), func(a *agentv1.NetworkAddress) bool { return !isStatic(a) })
		needed = needed || slices.ContainsFunc(link.GetAddresses(), isStatic) ||
			c.wanted[link.GetName()] && slices.Contains([]string{"vlan", "bond"}, link.GetKind())
	}
	if !needed {
		return nil, left
	}
	c.giveServers(NameServers(n))
	c.line(0, "version: 2")
	for _, group := range []struct{ title, kind string }{{"ethernets", ""}, {"bonds", "bond"}, {"bridges", "bridge"}, {"vlans", "vlan"}} {
		titled := false
		for _, link := range c.network.GetLinks() {
			if link.GetKind() != group.kind || !c.wanted[link.GetName()] {
				continue
			}
			if !titled {
				c.line(0, "%s:", group.title)
				titled = true
			}
			if err := c.link(link); err != nil {
				return nil, fmt.Errorf("%s: %w", link.GetName(), err)
			}
		}
	}
	also := func(more error) {
		if left != nil {
			more = fmt.Errorf("%w; %w", left, more)
		}
		left = more
	}
	if len(c.unsaid) > 0 {
		also(fmt.Errorf("a network-config does not say %s", strings.Join(c.unsaid, ", ")))
	}
	if len(c.servers) == 0 && !leased { // DHCP or a router would tell of name servers
		also(errors.New("no name server is known, so it finds no names unless its image or its first-boot data has one"))
	}
	return []byte(c.text.String()), left
}

// netplan writes a network-config.
type netplan struct {
	network *agentv1.Network
	// wanted are the interfaces that have addresses, and what these stand on.
	wanted map[string]bool
	text   strings.Builder
	// servers are the name servers of each interface, quoted.
	servers map[string][]string
	// unsaid is what the network has and a network-config cannot say, as the end of a sentence.
	unsaid []string
}

func (c *netplan) line(depth int, format string, args ...any) {
	_, _ = fmt.Fprintf(&c.text, strings.Repeat("  ", depth)+format+"\n", args...)
}

// leaveOut leaves out VLANs of 802.1ad, which a network-config would make as ones of 802.1Q, and
// what stands on them alone. The error names those of them that were wanted.
func (c *netplan) leaveOut() error {
	var left, missed []string
	unknown := func(link *agentv1.NetworkLink) bool {
		stands := slices.ContainsFunc(link.GetLower(), func(name string) bool { return slices.Contains(left, name) })
		protocol := link.GetVlanProtocol()
		return protocol != 0 && protocol != 0x8100 || stands && len(c.lower(link)) == 0
	}
	for i := slices.IndexFunc(c.network.Links, unknown); i >= 0; i = slices.IndexFunc(c.network.Links, unknown) {
		name := c.network.Links[i].GetName()
		if left = append(left, name); c.wanted[name] {
			missed = append(missed, name)
		}
		c.network.Links = slices.Delete(c.network.Links, i, i+1)
	}
	if len(missed) == 0 {
		return nil
	}
	return fmt.Errorf("what is on VLANs of 802.1ad is left out, because a network-config does not know them: %s", strings.Join(missed, ", "))
}

// wantAddressed wants the interfaces that have addresses, and no others.
func (c *netplan) wantAddressed() {
	c.wanted = map[string]bool{}
	for _, link := range c.network.GetLinks() {
		if len(link.GetAddresses()) > 0 {
			c.want(link.GetName())
		}
	}
}

func (c *netplan) want(name string) {
	if c.wanted[name] {
		return
	}
	c.wanted[name] = true
	for _, link := range c.network.GetLinks() {
		if link.GetName() == name {
			for _, lower := range link.GetLower() {
				c.want(lower)
			}
		}
	}
}

// link writes one interface.
func (c *netplan) link(link *agentv1.NetworkLink) error {
	c.line(1, "%q:", link.GetName())
	switch link.GetKind() {
	case "":
		if mac, err := net.ParseMAC(link.GetMac()); err != nil || len(mac) != 6 {
			return fmt.Errorf("it has no MAC address to be told by (%q)", link.GetMac())
		}
		c.line(2, "match: {macaddress: %q}", link.GetMac())
		c.line(2, "set-name: %q", link.GetName())
		if set := link.GetSetMac(); set != "" {
			c.line(2, "macaddress: %q", set)
		}
	case "vlan":
		lower := c.lower(link)
		if len(lower) != 1 {
			return errors.New("it is a VLAN on no interface that is known")
		}
		c.line(2, "id: %d", link.GetVlanId())
		c.line(2, "link: %s", lower[0])
	default:
		c.line(2, "interfaces: [%s]", strings.Join(c.lower(link), ", "))
		c.line(2, "macaddress: %q", link.GetMac())
		switch link.GetKind() {
		case "bond":
			if err := c.bond(link.GetBond()); err != nil {
				return err
			}
		case "bridge": // as the agent has made it; NetworkManager would have it speak STP
			c.line(2, "parameters:")
			c.line(3, "stp: false")
			if link.GetVlanFiltering() {
				c.unsaid = append(c.unsaid, fmt.Sprintf("that %s filters VLANs", link.GetName()))
			}
		}
	}
	// The kernel gives a virtual interface the MTU of what it stands on unless it is told one.
	if mtu := link.GetMtu(); mtu > 0 && (mtu != 1500 || len(link.GetLower()) > 0) {
		c.line(2, "mtu: %d", mtu)
	}
	c.addresses(link)
	c.routes(link)
	return nil
}

// lower returns the names of what a virtual interface stands on and is carried over, quoted.
func (c *netplan) lower(link *agentv1.NetworkLink) []string {
	var names []string
	for _, known := range c.network.GetLinks() {
		if slices.Contains(link.GetLower(), known.GetName()) {
			names = append(names, fmt.Sprintf("%q", known.GetName()))
		}
	}
	return names
}

// bondModes and hashPolicies are the names of the kernel's numbers
// (Documentation/networking/bonding.rst).
var (
	bondModes    = []string{"balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"}
	hashPolicies = []string{"layer2", "layer3+4", "layer2+3", "encap2+3", "encap3+4"}
	lacpRates    = []string{"slow", "fast"}
)

func (c *netplan) bond(bond *agentv1.Bond) error {
	name := func(names []string, number int32) string {
		if number < 0 || int(number) >= len(names) {
			return ""
		}
		return names[number]
	}
	mode := name(bondModes, bond.GetMode())
	if mode == "" {
		return fmt.Errorf("its mode %d is not known", bond.GetMode())
	}
	c.line(2, "parameters:")
	c.line(3, "mode: %q", mode)
	c.line(3, "mii-monitor-interval: %d", max(100, bond.GetMiimonMs()))
	if rate := name(lacpRates, bond.GetLacpRate()); mode == "802.3ad" && rate != "" {
		c.line(3, "lacp-rate: %q", rate)
	}
	if policy := name(hashPolicies, bond.GetXmitHashPolicy()); policy != "" && (mode == "802.3ad" || mode == "balance-xor") {
		c.line(3, "transmit-hash-policy: %q", policy)
	}
	return nil
}

// isStatic says whether an address was not given for a time.
func isStatic(a *agentv1.NetworkAddress) bool { return a.GetLifetimeMs() == 0 }

// given says whether an address of that family was given for a time, and the only one of an address
// alone (/128) by DHCPv6.
func given(link *agentv1.NetworkLink, ipv6 bool) (dynamic, alone bool) {
	for _, a := range link.GetAddresses() {
		if !isStatic(a) && strings.Contains(a.GetPrefix(), ":") == ipv6 {
			dynamic, alone = true, alone || strings.HasSuffix(a.GetPrefix(), "/128")
		}
	}
	return dynamic, alone
}

func (c *netplan) addresses(link *agentv1.NetworkLink) {
	var static []string
	for _, a := range link.GetAddresses() {
		if !isStatic(a) {
			continue
		}
		static = append(static, fmt.Sprintf("%q", a.GetPrefix()))
		if a.GetDeprecated() { // cloud-init fails on netplan's lifetime where there is no netplan
			c.unsaid = append(c.unsaid, fmt.Sprintf("that %s is deprecated", a.GetPrefix()))
		}
	}
	dhcp4, _ := given(link, false)
	metric, matters := c.leaseMetric(link)
	if dhcp4 {
		c.line(2, "dhcp4: true")
		if matters {
			c.line(2, "dhcp4-overrides: {route-metric: %d}", metric)
		}
	}
	if _, alone := given(link, true); alone {
		c.line(2, "dhcp6: true")
		if dhcp4 && matters { // netplan refuses metrics that differ
			c.line(2, "dhcp6-overrides: {route-metric: %d}", metric)
		}
	}
	if len(static) > 0 {
		c.line(2, "addresses: [%s]", strings.Join(static, ", "))
	}
	servers := c.servers[link.GetName()]
	if len(servers) == 0 {
		return
	}
	c.line(2, "nameservers:")
	c.line(3, "addresses: [%s]", strings.Join(servers, ", "))
	if domains := c.domains(); len(domains) > 0 {
		c.line(3, "search: [%s]", strings.Join(domains, ", "))
	}
}

// leaseMetric returns the metric of the default route of IPv4 that DHCP brings on a link, and
// whether it matters, because another link may have such a route. A lease may bring one that the
// old system did not have: it comes behind all others.
func (c *netplan) leaseMetric(link *agentv1.NetworkLink) (metric int64, matters bool) {
	for _, other := range c.network.GetLinks() {
		dhcp4, _ := given(other, false)
		matters = matters || dhcp4 && other.GetName() != link.GetName()
	}
	own, last := int64(-1), int64(-1)
	for _, r := range c.network.GetRoutes() {
		if destination(r) != "0.0.0.0/0" || !c.wanted[r.GetLink()] {
			continue
		}
		metric := int64(uint32(r.GetMetric()))
		switch last = max(last, metric); {
		case r.GetLink() != link.GetName():
			matters = true
		case own < 0 || metric < own:
			own = metric
		}
	}
	if own < 0 {
		return min(last+100, math.MaxUint32), matters && last >= 0
	}
	return own, matters
}

// NameServers returns the name servers of a network that are none of its own addresses: another
// system on the same machine does not answer there.
func NameServers(n *agentv1.Network) (servers []netip.Addr) {
	var own []netip.Addr
	for _, link := range n.GetLinks() {
		for _, a := range link.GetAddresses() {
			if prefix, err := netip.ParsePrefix(a.GetPrefix()); err == nil {
				own = append(own, prefix.Addr())
			}
		}
	}
	for line := range strings.Lines(string(n.GetResolvConf())) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		if server, err := netip.ParseAddr(words[1]); err == nil && !slices.Contains(own, server.Unmap()) {
			servers = append(servers, server.Unmap())
		}
	}
	return servers
}

// giveServers gives each name server to the interface that leads to it, because systemd-resolved
// asks it over no other: that of the longest prefix that it is in, else the first static one. Where
// nothing is static, DHCP or a router tells of name servers. A server on one link alone is left
// out, because a network-config has no zones.
func (c *netplan) giveServers(servers []netip.Addr) {
	links := c.network.GetLinks()
	first := slices.IndexFunc(links, func(link *agentv1.NetworkLink) bool { return slices.ContainsFunc(link.GetAddresses(), isStatic) })
	for _, server := range servers {
		if server.Zone() != "" || first < 0 {
			continue
		}
		to, longest, least := links[first].GetName(), -1, uint32(0)
		for _, link := range links {
			leads := func(network string, metric uint32) {
				prefix, err := netip.ParsePrefix(network)
				if bits := prefix.Bits(); err == nil && prefix.Contains(server) && (bits > longest || bits == longest && metric < least) {
					to, longest, least = link.GetName(), bits, metric
				}
			}
			for _, a := range link.GetAddresses() {
				leads(a.GetPrefix(), 0)
			}
			for _, r := range c.network.GetRoutes() {
				// a daemon's route is not there at first
				if r.GetLink() == link.GetName() && c.wanted[r.GetLink()] && (!r.GetDynamic() || r.GetDestination() == "") {
					leads(destination(r), uint32(r.GetMetric()))
				}
			}
		}
		c.servers[to] = append(c.servers[to], fmt.Sprintf("%q", server))
	}
}

// destination returns where a route leads to, that of a default route too.
func destination(r *agentv1.NetworkRoute) string {
	switch {
	case r.GetDestination() != "":
		return r.GetDestination()
	case r.GetIpv6():
		return "::/0"
	}
	return "0.0.0.0/0"
}

// domains returns the domains to search, quoted.
func (c *netplan) domains() (domains []string) {
	for line := range strings.SplitSeq(string(c.network.GetResolvConf()), "\n") {
		switch words := strings.Fields(line); {
		case len(words) < 2:
		case words[0] == "search" || words[0] == "domain":
			domains = nil // the last one counts (resolv.conf(5))
			for _, word := range words[1:] {
				if isHostName(word) {
					domains = append(domains, fmt.Sprintf("%q", word))
				}
			}
		}
	}
	return domains
}

// routes writes the routes that neither DHCP, nor a router, nor a routing daemon will bring.
func (c *netplan) routes(link *agentv1.NetworkLink) {
	titled := false
	for _, r := range c.network.GetRoutes() {
		if r.GetLink() != link.GetName() || r.GetDynamic() {
			continue
		}
		// A router marks its default route of IPv6, and DHCPv6 gives none. DHCP may mark none.
		if dynamic, _ := given(link, false); dynamic && r.GetDestination() == "" && !r.GetIpv6() {
			continue
		}
		if !titled {
			c.line(2, "routes:")
			titled = true
		}
		c.line(2, "- to: %q", destination(r))
		if r.GetGateway() != "" {
			c.line(3, "via: %q", r.GetGateway())
		} else {
			c.line(3, "scope: link")
		}
		c.source(link, r)
		if r.GetOnLink() || beyond(link, r.GetGateway()) {
			c.line(3, "on-link: true")
		}
		// netplan takes 2^32-1 for none, and older versions write a sign from 2^31 on
		if metric := min(uint32(r.GetMetric()), math.MaxInt32); metric > 0 {
			c.line(3, "metric: %d", metric)
		}
	}
}

// source writes which of the link's own addresses a route is used from. systemd-networkd may wait
// for ever for another one. A lease may bring another address than it did.
func (c *netplan) source(link *agentv1.NetworkLink, r *agentv1.NetworkRoute) {
	if r.GetSource() == "" {
		return
	}
	for _, a := range link.GetAddresses() {
		if own, _, _ := strings.Cut(a.GetPrefix(), "/"); own != r.GetSource() {
			continue
		}
		if isStatic(a) {
			c.line(3, "from: %q", r.GetSource())
		}
		return
	}
	c.unsaid = append(c.unsaid, fmt.Sprintf("that the route to %s over %s is used from %s", destination(r), link.GetName(), r.GetSource()))
}

// beyond says whether a gateway is in no network of the link. It was reached as the peer of a
// point-to-point address, which a network-config cannot say, or by another route. A link-local one
// is always on the link.
func beyond(link *agentv1.NetworkLink, gateway string) bool {
	ip := net.ParseIP(gateway)
	if ip == nil || ip.IsLinkLocalUnicast() {
		return false
	}
	return !slices.ContainsFunc(link.GetAddresses(), func(a *agentv1.NetworkAddress) bool {
		_, prefix, err := net.ParseCIDR(a.GetPrefix())
		return err == nil && prefix.Contains(ip)
	})
}

// isHostName says whether a text is a host or domain name (RFC 1123, section 2.1).
func isHostName(text string) bool {
	for label := range strings.SplitSeq(text, ".") {
		odd := func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-'
		}
		if label == "" || len(label) > 63 || strings.ContainsFunc(label, odd) || strings.Trim(label, "-") != label {
			return false
		}
	}
	return true
}

// hostName returns what a machine's name is as a host name: letters, digits, hyphens and dots; ""
// where that is none, and for an address.
func hostName(machine string) string {
	name := strings.Map(func(r rune) rune {
		if r == '.' || isHostName(string(r)) {
			return r
		}
		return '-'
	}, machine)
	name = strings.Trim(name, "-.")
	const longest = 64 // of Linux
	if len(name) > longest || net.ParseIP(machine) != nil || !isHostName(name) {
		return ""
	}
	return name
}
