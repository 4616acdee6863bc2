package install

import (
	"strings"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// What an interface has besides its addresses is told, too: without it, a system talks from an
// address, with a MAC address or in frames that do not get through.
func TestInterfaceIsTold(t *testing.T) {
	t.Parallel()
	route := func(source string) []*agentv1.NetworkRoute {
		return []*agentv1.NetworkRoute{{Link: "eno1", Gateway: "10.0.0.1", Source: source}}
	}
	const mac = "02:00:00:00:00:01"
	static := []*agentv1.NetworkAddress{address("10.0.0.5/24", 0), address("203.0.113.9/32", 0)}
	vlan := func(mtu int32) *agentv1.NetworkLink {
		return &agentv1.NetworkLink{Name: "eno1.10", Kind: "vlan", VlanId: 10, Lower: []string{"eno1"}, Mtu: mtu, Addresses: static}
	}
	for name, test := range map[string]struct {
		links      []*agentv1.NetworkLink
		routes     []*agentv1.NetworkRoute
		told, lack string
		warning    string
	}{
		"the source of a route": {
			[]*agentv1.NetworkLink{{Name: "eno1", Mac: mac, Addresses: static}}, route("203.0.113.9"), "      via: \"10.0.0.1\"\n      from: \"203.0.113.9\"\n", "scope", "",
		},
		"a source that the interface does not have": {
			[]*agentv1.NetworkLink{{Name: "eno1", Mac: mac, Addresses: static}},
			route("203.0.113.90"), "via:", "from:",
			"a network-config does not say that the route to 0.0.0.0/0 over eno1 is used from 203.0.113.90",
		},
		"a source that DHCP brings": {
			[]*agentv1.NetworkLink{{Name: "eno1", Mac: mac, Addresses: []*agentv1.NetworkAddress{static[0], address("203.0.113.9/24", 1)}}},
			[]*agentv1.NetworkRoute{{Link: "eno1", Destination: "198.51.100.0/24", Gateway: "203.0.113.1", Source: "203.0.113.9"}},
			"via:", "from:", "",
		},
		"no source": {[]*agentv1.NetworkLink{{Name: "eno1", Mac: mac, Addresses: static}}, route(""), "via:", "from:", ""},
		"an address that is for no new connections": {
			[]*agentv1.NetworkLink{{Name: "eno1", Mac: mac, Addresses: []*agentv1.NetworkAddress{static[0], {Prefix: "10.0.0.9/32", Deprecated: true}}}},
			nil, `addresses: ["10.0.0.5/24", "10.0.0.9/32"]`, "lifetime", "a network-config does not say that 10.0.0.9/32 is deprecated",
		},
		"a deprecated address from a router": {
			[]*agentv1.NetworkLink{{Name: "eno1", Mac: mac, Addresses: []*agentv1.NetworkAddress{static[0], {Prefix: "2001:db8::9/64", LifetimeMs: 1, Deprecated: true}}}},
			nil, `addresses: ["10.0.0.5/24"]`, "lifetime", "",
		},
		"a MAC address set by hand": {
			[]*agentv1.NetworkLink{{Name: "eno1", Mac: mac, SetMac: "02:00:00:00:00:99", Addresses: static}},
			nil, "    match: {macaddress: \"" + mac + "\"}\n    set-name: \"eno1\"\n    macaddress: \"02:00:00:00:00:99\"\n", "mtu:", "",
		},
		"a MAC address of its own": {[]*agentv1.NetworkLink{{Name: "eno1", Mac: mac, Addresses: static}}, nil, "match:", "\n    macaddress:", ""},
		"a VLAN of smaller frames than what it stands on": {
			[]*agentv1.NetworkLink{{Name: "eno1", Mac: mac, Mtu: 9000}, vlan(1500)}, nil, "    link: \"eno1\"\n    mtu: 1500\n", "mtu: 1400", "",
		},
		"a bridge that filters VLANs": {
			[]*agentv1.NetworkLink{
				{Name: "eno1", Mac: mac}, {Name: "br0", Kind: "bridge", Mac: mac, Lower: []string{"eno1"}, VlanFiltering: true, Addresses: static},
			},
			nil, "interfaces: [\"eno1\"]", "vlan", "a network-config does not say that br0 filters VLANs",
		},
		"a VLAN of an MTU that is not known": {[]*agentv1.NetworkLink{{Name: "eno1", Mac: mac, Mtu: 1500}, vlan(0)}, nil, "    link: \"eno1\"\n", "mtu:", ""},
	} {
		got, err := networkConfig(&agentv1.Network{Links: test.links, Routes: test.routes, ResolvConf: []byte("nameserver 10.0.0.53\n")})
		warning := ""
		if err != nil {
			warning = err.Error()
		}
		if text := string(got); warning != test.warning || !strings.Contains(text, test.told) || strings.Contains(text, test.lack) {
			t.Errorf("%s: warning %q\n%s", name, warning, text)
		}
	}
}
