package network

import (
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
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

// bridged returns the members that a bridge may be made again with. Ours speaks no spanning tree
// protocol: a member that this did not let forward would close a loop. Nor does ours filter VLANs,
// and has one of these members alone then (see alone).
func (c *capture) bridged(bridge string, all []string) []string {
	stp := word(c.sys, bridge, "bridge/stp_state") > "0"
	if !stp && !c.filtersVLANs(bridge) || len(all) == 0 {
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
	if stp {
		c.warn("the bridge %s is carried over without its spanning tree protocol, and with these members: %s", bridge, strings.Join(forward, ", "))
	}
	return forward
}

// alone leaves a bridge that filtered VLANs the first of the members that are carried: two would
// forward to each other what the filter kept apart, which joins VLANs or closes a loop.
func (c *capture) alone(bridge *agentv1.NetworkLink) {
	bridge.Lower = bridge.GetLower()[:1]
	c.warn("the bridge %s is carried over without its VLAN filtering, and with this member alone: %s", bridge.GetName(), bridge.GetLower()[0])
}
