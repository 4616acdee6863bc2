package webui

import (
	"fmt"
	"net/url"
	"strings"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

// state is how one of the fleet's states is shown, everywhere. Its colour is in the style sheet, by
// its class.
type state struct {
	name    string
	class   string
	meaning string
}

// trouble says whether somebody should look at a machine in the state.
func (s state) trouble() bool { return fleet.State(s.name).Trouble() }

// moving says whether a machine in the state gets on without anybody's help.
func (s state) moving() bool { return fleet.State(s.name).Moving() }

// states is total over fleet.States, in their order; a test holds it to that. What a newer control
// plane adds is shown in grey, after them.
var states = []state{
	describe(fleet.StateCreating, "The provider was asked for it, or will be; it has not confirmed it yet."),
	describe(fleet.StateProvisioning, "The provider has it and is not done with it."),
	describe(fleet.StateProvided, "The provider handed it over; no agent is in charge yet."),
	describe(fleet.StateStarted, "The agent was started, and has not spoken or not reported the hardware yet. Or it had fallen silent before a maintenance or a quarantine, or before it was restarted or switched on, and is not heard since."),
	describe(fleet.StateAvailable, "The agent speaks, the hardware is known, nothing more is wanted."),
	describe(fleet.StateInstalling, "An operating system is wanted or being written."),
	describe(fleet.StateBooting, "The disk is written; the installed system has not been seen yet."),
	describe(fleet.StateInstalled, "The installed system has been seen to come up."),
	describe(fleet.StateReturning, "A reinstall was called off before anything was written; the installed system is not seen to be back yet."),
	describe(fleet.StateUnreachable, "The installed system is watched, and its probes fail, or its machine is off though nobody switched it off, or its provider has reinstalled it for somebody else; it is left alone."),
	describe(fleet.StateSilent, "Nothing is heard of it: its agent fell silent or never spoke, its installed system does not come up, or its host never answered."),
	describe(fleet.StateFailed, "The provider gave the machine up."),
	describe(fleet.StateMissing, "The provider is certain that it does not have the machine."),
	describe(fleet.StateUnreadable, "Something that is recorded of it cannot be read; nothing is done to it."),
	describe(fleet.StateRefused, "Its agent refused to install, because of what a disk holds: an install that is not older, or something that was not allowed to be erased; or because it is too old to understand what was asked for. A person decides."),
	describe(fleet.StateOff, "Switched off by an operator, or off when its release, its replacement or switching it on came to nothing."),
	describe(fleet.StateReleasing, "It is being given back to its provider."),
	describe(fleet.StateMaintenance, "An operator works on it; nothing touches the host."),
	describe(fleet.StateQuarantined, "Kept away from all work until somebody decides."),
}

func describe(s fleet.State, meaning string) state {
	return state{name: string(s), class: "s-" + string(s), meaning: meaning}
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

// segment is the part of the bar that a state has, in thousandths of the bar's width.
type segment struct {
	share
	x, width float64
}

const (
	barWidth     = 1000.0
	barGap       = 2.0
	thinnestPart = 5.0
)

// segments lays the bar out. Widths are in proportion, but none is too thin to be seen.
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

// barText describes the bar for people who cannot see it.
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
