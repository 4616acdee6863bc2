package network

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// TestBlockedMembersAreNotCarried: a bridge is made again without a spanning tree protocol, and a
// member that the protocol had blocked would close a loop. One that filters VLANs has members that
// forward, too.
func TestBlockedMembersAreNotCarried(t *testing.T) {
	t.Parallel()
	const forwarding, blocking, listening = "3\n", "4\n", "1\n"
	for name, test := range map[string]struct {
		stp, filters    string
		states, carried []string // of eth0, eth1 …
		warned          bool
	}{
		"no protocol":                      {"0\n", "0\n", []string{forwarding, blocking}, []string{"eth0", "eth1"}, false},
		"the kernel's":                     {"1\n", "0\n", []string{blocking, forwarding, forwarding}, []string{"eth1", "eth2"}, true},
		"a daemon's":                       {"2\n", "0\n", []string{forwarding, blocking}, []string{"eth0"}, true},
		"none forwards yet":                {"1\n", "0\n", []string{listening, listening}, []string{"eth0"}, true},
		"one has no link":                  {"1\n", "0\n", []string{"0\n", listening}, []string{"eth1"}, true},
		"no members":                       {"1\n", "1\n", nil, nil, false},
		"nothing is known of it":           {"", "", []string{"", ""}, []string{"eth0", "eth1"}, false},
		"nothing is known of one":          {"1\n", "", []string{forwarding, ""}, []string{"eth0"}, true},
		"it filters, and one has no link":  {"0\n", "1\n", []string{"0\n", forwarding, forwarding}, []string{"eth1", "eth2"}, false},
		"it filters, and none has a link":  {"0\n", "1\n", []string{"0\n", "0\n"}, []string{"eth0"}, false},
		"it filters, and has the protocol": {"1\n", "1\n", []string{blocking, forwarding, forwarding}, []string{"eth1", "eth2"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sys := t.TempDir()
			write := func(path, text string) {
				if text == "" {
					return
				}
				path = filepath.Join(sys, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("br0/bridge/stp_state", test.stp)
			write("br0/bridge/vlan_filtering", test.filters)
			all := []string{"eth0", "eth1", "eth2"}[:len(test.states)]
			for i, state := range test.states {
				write(all[i]+"/brport/state", state)
			}
			c := &capture{sys: sys}
			if carried := c.bridged("br0", all); !slices.Equal(carried, test.carried) || (len(c.warnings) > 0) != test.warned {
				t.Errorf("carries %q and warns %q, want %q", carried, c.warnings, test.carried)
			}
		})
	}
}

// TestBridgeThatFilters: a bridge is made again without its VLAN filter, and two members would
// forward to each other what that kept apart. So it has one, the first that is carried. Who
// installs the machine is told that there was a filter.
func TestBridgeThatFilters(t *testing.T) {
	t.Parallel()
	ownNetwork(t)
	for filters, text := range map[bool]string{true: "1\n", false: "0\n"} {
		c := hostCapture(t, "eth0", "eth1")
		path := filepath.Join(c.sys, "br0/bridge/vlan_filtering")
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		byIndex := map[int]netlink.Link{}
		for i, name := range []string{"dummy0", "eth0", "eth1"} {
			byIndex[1001+i] = &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name, Index: 1001 + i, MasterIndex: 1000, Flags: net.FlagUp}}
			port := filepath.Join(c.sys, name, "brport")
			if err := errors.Join(os.MkdirAll(port, 0o755), os.WriteFile(filepath.Join(port, "state"), []byte("3\n"), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		byIndex[1000] = &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0", Index: 1000, Flags: net.FlagUp}}
		for _, link := range byIndex {
			carried, err := c.link(link, byIndex)
			if err != nil {
				t.Fatal(err)
			}
			if carried != nil {
				c.network.Links = append(c.network.Links, carried)
			}
		}
		c.leaveOut()
		at := slices.IndexFunc(c.network.GetLinks(), func(link *agentv1.NetworkLink) bool { return link.GetName() == "br0" })
		if at < 0 || len(c.network.GetLinks()) != 3 {
			t.Fatalf("carried: %v", c.network.GetLinks())
		}
		members, warnings := []string{"eth0", "eth1"}, []string{}
		if filters {
			members = []string{"eth0"}
			warnings = append(warnings, "the bridge br0 is carried over without its VLAN filtering, and with this member alone: eth0")
		}
		if bridge := c.network.GetLinks()[at]; bridge.GetVlanFiltering() != filters {
			t.Errorf("it is told to filter: %t", bridge.GetVlanFiltering())
		}
		expect(t, "members", c.network.GetLinks()[at].GetLower(), members...)
		expect(t, "warnings", c.warnings, warnings...)
	}
}
