package install

import (
	"fmt"
	"strings"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// Where several interfaces have a default route, the installed system prefers the one that the old
// system preferred. Without metrics, netplan gives that of each lease the same.
func TestDefaultRoutesOfLeases(t *testing.T) {
	t.Parallel()
	static := []*agentv1.NetworkAddress{address("198.51.100.10/24", 0)}
	lease := []*agentv1.NetworkAddress{address("192.0.2.10/24", 1)}
	both := []*agentv1.NetworkAddress{address("192.0.2.10/24", 1), address("2001:db8::7/128", 1)}
	route := func(link string, metric int32, dynamic bool) *agentv1.NetworkRoute {
		return &agentv1.NetworkRoute{Link: link, Gateway: "192.0.2.1", Metric: metric, Dynamic: dynamic}
	}
	const four, six = "    dhcp4-overrides: {route-metric: %d}\n", "    dhcp6-overrides: {route-metric: %d}\n"
	for name, test := range map[string]struct {
		eth0, eth1 []*agentv1.NetworkAddress
		routes     []*agentv1.NetworkRoute
		want       [2]string
	}{
		"of two leases": {
			lease, lease,
			[]*agentv1.NetworkRoute{route("eth1", 1000, true), route("eth0", 100, true)},
			[2]string{fmt.Sprintf(four, 100), fmt.Sprintf(four, 1000)},
		},
		"of two leases, the first one without a metric": {
			lease, lease,
			[]*agentv1.NetworkRoute{route("eth0", 0, false), route("eth1", 1, false)},
			[2]string{fmt.Sprintf(four, 0), fmt.Sprintf(four, 1)},
		},
		"of one of two leases": {
			lease, lease,
			[]*agentv1.NetworkRoute{route("eth1", 0, false)},
			[2]string{fmt.Sprintf(four, 100), fmt.Sprintf(four, 0)},
		},
		"of a lease behind a static one": {
			static, lease,
			[]*agentv1.NetworkRoute{route("eth0", 100, false), route("eth1", 101, true)},
			[2]string{"", fmt.Sprintf(four, 101)},
		},
		// netplan refuses a metric for one of both families
		"with DHCPv6": {
			static, both,
			[]*agentv1.NetworkRoute{route("eth0", 100, false), route("eth1", 101, true)},
			[2]string{"", fmt.Sprintf(four+six, 101, 101)},
		},
		"two on one interface": {
			lease, lease,
			[]*agentv1.NetworkRoute{route("eth0", 300, false), route("eth0", 200, true), route("eth1", 250, true)},
			[2]string{fmt.Sprintf(four, 200), fmt.Sprintf(four, 250)},
		},
		"the greatest metric":           {lease, lease, []*agentv1.NetworkRoute{route("eth0", -1, true)}, [2]string{fmt.Sprintf(four, uint32(1<<32-1)), fmt.Sprintf(four, uint32(1<<32-1))}},
		"of one lease":                  {lease, static, []*agentv1.NetworkRoute{route("eth0", 5, true)}, [2]string{}},
		"of two leases without any":     {lease, lease, nil, [2]string{}},
		"beside one that is left out":   {lease, static, []*agentv1.NetworkRoute{route("eth0", 5, true), route("wg0", 1, false)}, [2]string{}},
		"of a lease beside one of IPv6": {lease, static, []*agentv1.NetworkRoute{route("eth0", 5, true), {Link: "eth1", Gateway: "fe80::1", Ipv6: true, Metric: 1}}, [2]string{}},
	} {
		got, err := networkConfig(&agentv1.Network{
			Links: []*agentv1.NetworkLink{
				{Name: "eth0", Mac: "02:00:00:00:00:01", Addresses: test.eth0},
				{Name: "eth1", Mac: "02:00:00:00:00:02", Addresses: test.eth1},
				{Name: "eth0.7", Kind: "vlan", VlanId: 7, Lower: []string{"eth0"}, Addresses: []*agentv1.NetworkAddress{address("10.7.0.5/24", 0)}},
			},
			Routes: test.routes, ResolvConf: []byte("nameserver 192.0.2.53\n"),
		})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i, want := range test.want {
			_, of, _ := strings.Cut(string(got), fmt.Sprintf("  \"eth%d\":\n", i))
			if end := strings.Index(of, "\n  \""); end >= 0 {
				of = of[:end+1]
			}
			told := ""
			for line := range strings.Lines(of) {
				if strings.Contains(line, "overrides") {
					told += line
				}
			}
			if told != want {
				t.Errorf("%s: eth%d is told %q, want %q\n%s", name, i, told, want, got)
			}
		}
	}
}
