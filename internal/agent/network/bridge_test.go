package network

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestBlockedMembersAreNotCarried: a bridge is made again without a spanning tree protocol, and a
// member that the protocol had blocked would close a loop. It is made without a VLAN filter, too,
// and two members would forward to each other what that kept apart: one alone is left.
func TestBlockedMembersAreNotCarried(t *testing.T) {
	t.Parallel()
	const (
		forwarding, blocking, listening = "3\n", "4\n", "1\n"
		stp, filter                     = "spanning tree protocol", "VLAN filtering"
	)
	for name, test := range map[string]struct {
		stp, filters    string
		states, carried []string // of eth0, eth1 …
		lost            string
	}{
		"no protocol":                     {"0\n", "0\n", []string{forwarding, blocking}, []string{"eth0", "eth1"}, ""},
		"the kernel's":                    {"1\n", "0\n", []string{blocking, forwarding, forwarding}, []string{"eth1", "eth2"}, stp},
		"a daemon's":                      {"2\n", "0\n", []string{forwarding, blocking}, []string{"eth0"}, stp},
		"none forwards yet":               {"1\n", "0\n", []string{listening, listening}, []string{"eth0"}, stp},
		"one has no link":                 {"1\n", "0\n", []string{"0\n", listening}, []string{"eth1"}, stp},
		"no members":                      {"1\n", "1\n", nil, nil, ""},
		"nothing is known of it":          {"", "", []string{"", ""}, []string{"eth0", "eth1"}, ""},
		"nothing is known of one":         {"1\n", "", []string{forwarding, ""}, []string{"eth0"}, stp},
		"it filters VLANs":                {"0\n", "1\n", []string{forwarding, forwarding}, []string{"eth0"}, filter},
		"it filters VLANs of one member":  {"0\n", "1\n", []string{forwarding}, []string{"eth0"}, filter},
		"it filters, one has no link":     {"0\n", "1\n", []string{"0\n", forwarding, forwarding}, []string{"eth1"}, filter},
		"it filters, none has a link":     {"0\n", "1\n", []string{"0\n", "0\n"}, []string{"eth0"}, filter},
		"it filters, and has the protocol": {"1\n", "1\n", []string{blocking, forwarding, forwarding}, []string{"eth1"}, stp + " and " + filter},
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
			carried := c.bridged("br0", all)
			var warned []string
			if test.lost != "" {
				warned = []string{"the bridge br0 is carried over without its " + test.lost + ", and with these members: " + strings.Join(test.carried, ", ")}
			}
			if !slices.Equal(carried, test.carried) || !slices.Equal(c.warnings, warned) {
				t.Errorf("carries %q and warns %q, want %q and %q", carried, c.warnings, test.carried, warned)
			}
		})
	}
}

// TestBridgeThatFilters: an installed system is told a bridge without the filter that it had, so
// who captures it says that there was one.
func TestBridgeThatFilters(t *testing.T) {
	t.Parallel()
	ownNetwork(t)
	for filters, text := range map[bool]string{true: "1\n", false: "0\n"} {
		c := hostCapture(t)
		path := filepath.Join(c.sys, "br0/bridge/vlan_filtering")
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		byIndex := map[int]netlink.Link{1001: &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "eth0", Index: 1001, MasterIndex: 1000}}}
		carried, err := c.link(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0", Index: 1000, Flags: net.FlagUp}}, byIndex)
		if err != nil || carried.GetVlanFiltering() != filters || !slices.Equal(carried.GetLower(), []string{"eth0"}) {
			t.Errorf("filters: %t: %v, %v", filters, carried, err)
		}
	}
}
