package lifecycle_test

import (
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// asking are machines that are repaired because what we ask them has no answer: time in which
// nobody asked shows nothing.
var asking = []scenario{
	{
		name: "one question without an answer restarts nothing: there may have been none before", steps: with(unseen, probed(66, 66, 1)), now: 66,
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Later, 76, "metal reboots it"}},
	},
	{
		name: "nor does it quarantine", now: 66,
		steps: with(unseen, probed(66, 66, 1), repair(21, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 2, fleet.RungPowerCycle: 1})),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Waiting, 0, "was tried at 2026-11-21 00:21:00 UTC; the probes show whether the installed system comes up"}},
	},
	{
		name: "asked for as long as a step has, it is quarantined", now: 76,
		steps: with(unseen, probed(76, 66, 1), repair(21, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 2, fleet.RungPowerCycle: 1})),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 76, "quarantined"}},
	},
	{
		name: "while nobody asks, the time of the first step does not end", steps: with(unseen, probed(21, 6, 1)), now: 66,
		state: fleet.StateSilent,
		want: []due{
			{probe, lifecycle.Due, 21 + 1.0/6, "is asked"},
			{recovery, lifecycle.Waiting, 0, "and is asked again without an answer: metal reboots it"},
		},
	},
	{
		name: "the question at its end shows it", steps: with(unseen, probed(30, 6, 1)), now: 30,
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 30, "metal reboots it"}},
	},
	{
		name: "while no start of an agent is tried, a host is not one that never answers", now: 60,
		steps: with(active, allLevers, backoff(agentStart, 2, "dial"), unanswered(1)),
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.Due, 2, "needs an agent"},
			{recovery, lifecycle.Waiting, 0, "and is asked again without an answer: metal reboots it"},
		},
	},
	{
		name: "nor is it while we are away", now: 120, env: func(e *fleet.Environment) { e.ListenerUpSince = at(120) },
		steps: with(active, allLevers, backoff(agentStart, 121, "dial"), unanswered(1)),
		state: fleet.StateProvided,
		want:  []due{{recovery, lifecycle.Later, 160, "metal reboots it"}},
	},
	{
		name: "nor is it where its start fails for a fault of ours", now: 60,
		steps: with(active, allLevers, backoff(agentStart, 61, "the jump host is down"), unanswered(1, 30)),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Waiting, 0, "and is asked again without an answer: metal reboots it"}},
	},
	{
		name: "one more start that had no answer shows it", now: 60,
		steps: with(active, allLevers, backoff(agentStart, 61, "dial"), unanswered(1, 31)),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 41, "metal reboots it"}},
	},
	{
		name: "one that is off is not asked: it is switched on", now: 60,
		steps: with(active, allLevers, backoff(agentStart, 2, "dial"), unanswered(1), offAt(20)),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 41, "metal switches it off and on"}},
	},
}

// TestAStartWaitsForAReinstall: a start that is to come, of an agent whose machine the provider
// makes anew, is told with that, because it waits for it then.
func TestAStartWaitsForAReinstall(t *testing.T) {
	t.Parallel()
	r := record(with(known, provided(5, fleet.ProviderStatusCreating))...)
	start := lifecycle.Decide(r, environment(), at(6)).For(agentStart)
	if start.Verdict != lifecycle.Later || !strings.HasSuffix(start.Reason, ", unless metal makes or reinstalls the machine still") {
		t.Errorf("%s: %s", start.Verdict, start.Reason)
	}
	if then := lifecycle.Decide(r, environment(), start.DueAt).For(agentStart); then.Verdict != lifecycle.Waiting {
		t.Errorf("then %s: %s", then.Verdict, then.Reason)
	}
}
