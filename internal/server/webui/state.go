package webui

import (
	"fmt"
	"net/url"
	"strings"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

// state is how one of the fleet's states is shown, everywhere. Its colour is in the style sheet, by
// its class.
type state struct {
	name    string
	class   string
	meaning string
	// trouble: somebody should look. moving: on its way, without anybody's help.
	trouble, moving bool
}

// states is total over the states of a machine, in the order of a machine's way; a test holds it to
// that. What a newer control plane adds is shown in grey, after them.
var states = []state{
	{name: "creating", class: "s-creating", moving: true, meaning: "The provider was asked for it, or will be; it has not confirmed it yet."},
	{name: "provisioning", class: "s-provisioning", moving: true, meaning: "The provider has it and is not done with it."},
	{name: "provided", class: "s-provided", moving: true, meaning: "The provider handed it over; no agent is in charge yet."},
	{name: "agent-started", class: "s-agent-started", moving: true, meaning: "The agent was started; its first word or its hardware report is awaited."},
	{name: "available", class: "s-available", meaning: "The agent speaks, the hardware is known, nothing more is wanted."},
	{name: "installing", class: "s-installing", moving: true, meaning: "An operating system is wanted or being written."},
	{name: "booting", class: "s-booting", moving: true, meaning: "The disk is written; the installed system has not been seen yet."},
	{name: "installed", class: "s-installed", meaning: "The installed system has been seen to come up."},
	{name: "silent", class: "s-silent", trouble: true, meaning: "The agent stopped speaking, or never spoke."},
	{name: "failed", class: "s-failed", trouble: true, meaning: "The provider gave the machine up."},
	{name: "missing", class: "s-missing", trouble: true, meaning: "The provider is certain that it does not have the machine."},
	{name: "quarantined", class: "s-quarantined", trouble: true, meaning: "Kept away from all work until somebody decides."},
}

func stateOf(name string) state {
	for _, s := range states {
		if s.name == name {
			return s
		}
	}
	return state{name: name, class: "s-unknown", meaning: "A state that this page does not know."}
}

func isState(name string) bool { return stateOf(name).class != "s-unknown" }

// share is how many machines are in a state.
type share struct {
	state
	machines int64
}

// shares puts the counts of a summary in order. Every known state has its place, with zero machines
// too.
func shares(counts []*fleetv1.StateCount) []share {
	all := make([]share, 0, len(states))
	at := map[string]int{}
	for i, s := range states {
		all = append(all, share{state: s})
		at[s.name] = i
	}
	for _, c := range counts {
		i, ok := at[c.GetState()]
		if !ok {
			i = len(all)
			at[c.GetState()] = i
			all = append(all, share{state: stateOf(c.GetState())})
		}
		all[i].machines += max(0, c.GetMachines())
	}
	return all
}

// segment is a share of the bar, in thousandths of its width.
type segment struct {
	share
	x, width float64
}

const (
	barWidth     = 1000.0
	barGap       = 2.0
	thinnestPart = 5.0
)

// segments lays the bar out: widths in proportion, but none so thin that it could be overlooked.
func segments(all []share) []segment {
	var shown []segment
	var total, room float64
	for _, s := range all {
		if s.machines > 0 {
			shown = append(shown, segment{share: s})
			total += float64(s.machines)
		}
	}
	room = barWidth - barGap*float64(len(shown)-1) - thinnestPart*float64(len(shown))
	x := 0.0
	for i := range shown {
		shown[i].x = x
		shown[i].width = thinnestPart + room*float64(shown[i].machines)/total
		x += shown[i].width + barGap
	}
	return shown
}

// barText is the bar for who cannot see it.
func barText(all []share) string {
	parts := make([]string, 0, len(all))
	for _, s := range all {
		if s.machines > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", s.machines, s.name))
		}
	}
	return "Machines by state: " + strings.Join(parts, ", ")
}

func stateURL(name string) string { return "/machines?" + url.Values{"state": {name}}.Encode() }
