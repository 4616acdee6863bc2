package network

import (
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// members returns the members of a bond or bridge, without those that lead to the containers and
// virtual machines of this very host.
func members(master int, byIndex map[int]netlink.Link) []string {
	var names []string
	for _, link := range byIndex {
		if link.Attrs().MasterIndex == master && !slices.Contains([]string{"veth", "tuntap"}, link.Type()) {
			names = append(names, link.Attrs().Name)
		}
	}
	slices.Sort(names)
	return names
}

func (c *capture) filtersVLANs(bridge string) bool {
	return word(c.sys, bridge, "bridge/vlan_filtering") == "1"
}

// bridged returns the members that a bridge is made again with. Ours speaks no spanning tree
// protocol: a member that this did not let forward would close a loop. Nor does ours filter VLANs:
// two members would forward to each other what the filter kept apart, which joins VLANs or closes a
// loop.
func (c *capture) bridged(bridge string, all []string) []string {
	var lost []string
	if word(c.sys, bridge, "bridge/stp_state") > "0" {
		lost = append(lost, "spanning tree protocol")
	}
	filters := c.filtersVLANs(bridge)
	if filters {
		lost = append(lost, "VLAN filtering")
	}
	if len(lost) == 0 || len(all) == 0 {
		return all
	}
	linked := func(member string) bool { return word(c.sys, member, "brport/state") > "0" }
	first := all[max(0, slices.IndexFunc(all, linked))]
	forward := slices.DeleteFunc(all, func(member string) bool {
		return word(c.sys, member, "brport/state") != "3" // BR_STATE_FORWARDING of linux/if_bridge.h
	})
	if len(forward) == 0 { // one alone closes no loop
		forward = append(forward, first)
	}
	if filters {
		forward = forward[:1]
	}
	c.warn("the bridge %s is carried over without its %s, and with these members: %s", bridge, strings.Join(lost, " and "), strings.Join(forward, ", "))
	return forward
}
