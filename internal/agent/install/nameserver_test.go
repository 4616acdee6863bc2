package install

import (
	"strings"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// systemd-resolved asks a name server over the interface that has it, and over no other: each is
// put on the interface that leads to it.
func TestNameServersLead(t *testing.T) {
	t.Parallel()
	link := func(name, mac string, addresses ...*agentv1.NetworkAddress) *agentv1.NetworkLink {
		return &agentv1.NetworkLink{Name: name, Mac: mac, Addresses: addresses}
	}
	storage := link("eno1", "02:00:00:00:00:01", address("10.20.0.7/24", 0))
	uplink := link("eno2", "02:00:00:00:00:02", address("192.0.2.7/24", 0), address("2001:db8::7/64", 0))
	leased := link("eno2", "02:00:00:00:00:02", address("192.0.2.7/24", 3600_000))
	left := &agentv1.NetworkLink{Name: "eno2.5", Kind: "vlan", VlanId: 5, VlanProtocol: 0x88a8, Lower: []string{"eno2"}, Addresses: []*agentv1.NetworkAddress{address("198.51.100.7/24", 0)}}
	out := &agentv1.NetworkRoute{Link: "eno2", Gateway: "192.0.2.1"}
	for name, test := range map[string]struct {
		links   []*agentv1.NetworkLink
		routes  []*agentv1.NetworkRoute
		servers string
		want    string
	}{
		"by the default route":      {[]*agentv1.NetworkLink{storage, uplink}, []*agentv1.NetworkRoute{out}, "192.0.2.53 8.8.8.8", "eno2: 192.0.2.53 8.8.8.8"},
		"each by a network":         {[]*agentv1.NetworkLink{storage, uplink}, []*agentv1.NetworkRoute{out}, "8.8.8.8 10.20.0.53", "eno1: 10.20.0.53, eno2: 8.8.8.8"},
		"by a route of its own":     {[]*agentv1.NetworkLink{storage, uplink}, []*agentv1.NetworkRoute{out, {Link: "eno1", Destination: "10.0.0.0/8", Gateway: "10.20.0.1"}}, "10.9.0.53", "eno1: 10.9.0.53"},
		"by the longer of routes":   {[]*agentv1.NetworkLink{storage, uplink}, []*agentv1.NetworkRoute{{Link: "eno2", Destination: "10.9.0.0/16"}, {Link: "eno1", Destination: "10.0.0.0/8"}}, "10.9.0.53", "eno2: 10.9.0.53"},
		"by the lower metric":       {[]*agentv1.NetworkLink{storage, uplink}, []*agentv1.NetworkRoute{{Link: "eno1", Gateway: "10.20.0.1", Metric: 200}, {Link: "eno2", Gateway: "192.0.2.1", Metric: 100}}, "8.8.8.8", "eno2: 8.8.8.8"},
		"behind the greatest one":   {[]*agentv1.NetworkLink{storage, uplink}, []*agentv1.NetworkRoute{{Link: "eno1", Gateway: "10.20.0.1", Metric: -1}, {Link: "eno2", Gateway: "192.0.2.1", Metric: 100}}, "8.8.8.8", "eno2: 8.8.8.8"},
		"IPv6":                      {[]*agentv1.NetworkLink{storage, uplink}, []*agentv1.NetworkRoute{{Link: "eno1", Gateway: "10.20.0.1"}, {Link: "eno2", Gateway: "fe80::1", Ipv6: true}}, "2620:fe::fe 2001:db8::53", "eno2: 2620:fe::fe 2001:db8::53"},
		"over what DHCP configures": {[]*agentv1.NetworkLink{storage, leased}, []*agentv1.NetworkRoute{{Link: "eno2", Gateway: "192.0.2.1", Dynamic: true}}, "8.8.8.8", "eno2: 8.8.8.8"},
		"by a daemon's route": {
			[]*agentv1.NetworkLink{storage, uplink}, []*agentv1.NetworkRoute{out, {Link: "eno1", Destination: "8.8.8.0/24", Gateway: "10.20.0.1", Dynamic: true}}, "8.8.8.8", "eno2: 8.8.8.8",
		},
		"by no route":              {[]*agentv1.NetworkLink{storage, uplink}, nil, "8.8.8.8", "eno1: 8.8.8.8"},
		"over what is left out":    {[]*agentv1.NetworkLink{storage, uplink, left}, []*agentv1.NetworkRoute{{Link: "eno2.5", Gateway: "198.51.100.1"}}, "198.51.100.53", "eno1: 198.51.100.53"},
		"all from DHCP, on a bond": {[]*agentv1.NetworkLink{{Name: "b", Kind: "bond", Bond: &agentv1.Bond{}, Addresses: leased.GetAddresses()}}, nil, "192.0.2.53", ""},
	} {
		resolver := "search example.com\nnameserver " + strings.ReplaceAll(test.servers, " ", "\nnameserver ") + "\n"
		text, _ := networkConfig(&agentv1.Network{Links: test.links, Routes: test.routes, ResolvConf: []byte(resolver)})
		var got []string
		on, server := "", false
		for line := range strings.Lines(string(text)) {
			words := strings.Fields(strings.NewReplacer("\"", "", ":\n", "\n", "[", "", "]", "", ",", "").Replace(line))
			switch {
			case strings.HasPrefix(line, "  \""):
				on = words[0]
			case server && words[0] == "addresses:":
				got = append(got, on+": "+strings.Join(words[1:], " "))
			}
			server = len(words) == 1 && words[0] == "nameservers"
		}
		if told := strings.Join(got, ", "); told != test.want || strings.Count(string(text), "search: ") != len(got) {
			t.Errorf("%s: %q, want %q\n%s", name, told, test.want, text)
		}
	}
}
