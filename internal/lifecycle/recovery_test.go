package lifecycle_test

import (
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

var recoveryLadder = []scenario{
	{
		name: "an agent that cannot be started again: the machine is rebooted", steps: with(broken, allLevers), now: 24,
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.Due, 14, "started again"},
			{recovery, lifecycle.Due, 23, "metal reboots it"},
		},
	},
	{
		name: "what the provider cannot do is no step", steps: with(broken, levers(fleet.LeverPower)), now: 24,
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 23, "metal switches it off and on"}},
	},
	{
		name: "without levers a person is needed", steps: broken, now: 24,
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 23, "quarantined for a person"}},
	},
	{
		name: "after a reboot the agent is started again", steps: with(broken, allLevers, repair(24, fleet.RungReboot, nil)), now: 24.5,
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.Later, 25, "the machine was restarted"},
			{recovery, lifecycle.Later, 34, "reboot was done at 00:24:00; without a sign of life 10m0s later: metal reboots it"},
		},
	},
	{
		name: "where a step has little time, its agent is started before the next step", now: 24.25,
		steps: with(broken, allLevers, repair(24, fleet.RungReboot, nil)),
		env:   func(e *fleet.Environment) { e.Policy.RecoveryStepTimeout = 90 * time.Second },
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.Later, 24.5, "the machine was restarted"},
			{recovery, lifecycle.Later, 25.5, "reboot was done at 00:24:00; without a sign of life 1m30s later"},
		},
	},
	{
		name: "an agent that was started again has to speak", now: 26,
		steps: with(broken, allLevers, started(25, 2), repair(25, fleet.RungAgentStart, map[fleet.Rung]int{fleet.RungAgentStart: 1})),
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.NotWanted, 0, "takeover generation 2"},
			{recovery, lifecycle.Later, 35, "agent-start was done at 00:25:00; without a sign of life 10m0s later: metal reboots it"},
		},
	},
	{
		name: "the reboots are used up", now: 40,
		steps: with(broken, allLevers, repair(30, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 2})),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 40, "off and on"}},
	},
	{
		name: "no policy allows a reinstall: the end of the ladder", now: 50,
		steps: with(broken, allLevers, repair(40, fleet.RungPowerCycle, map[fleet.Rung]int{fleet.RungReboot: 2, fleet.RungPowerCycle: 1})),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 50, "quarantined"}},
	},
	{
		name: "a policy that allows it", now: 50,
		steps: with(broken, allLevers, repair(40, fleet.RungPowerCycle, map[fleet.Rung]int{fleet.RungReboot: 2, fleet.RungPowerCycle: 1})),
		env:   func(e *fleet.Environment) { e.Policy.RecoveryReinstalls = 1 },
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 50, "destroys the disk"}},
	},
	{
		name: "a heartbeat from after the step ends the trouble", now: 26,
		steps: with(known, started(24.5, 2), seen(25, 25.5, 2), repair(24, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 2})),
		state: fleet.StateAvailable,
		want: []due{
			{agentStart, lifecycle.Later, 35.5, "silent for 10m0s"},
			{recovery, lifecycle.NotWanted, 0, "not silent"},
		},
	},
	{
		name: "it falls silent again within a day: the ladder goes on where it was", now: 60,
		steps: with(broken, allLevers, started(24.5, 2), seen(25, 39, 2), repair(24, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 2})),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 59, "off and on"}},
	},
	{
		name: "an earlier trouble is long over", now: 2060,
		steps: with(broken, allLevers, started(24.5, 2), seen(25, 2039, 2), repair(24, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 2})),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 2059, "metal reboots it"}},
	},
	{
		name: "an installed system that does not come up is rebooted at once", steps: with(written, allLevers), now: 21,
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.NotWanted, 0, "booting"},
			{recovery, lifecycle.Due, 20, "metal reboots it"},
		},
	},
	{
		name: "it comes up after the reboot", now: 23,
		steps: with(written, allLevers, repair(21, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 1}), installed(22, 1)),
		state: fleet.StateInstalled,
		want:  []due{{recovery, lifecycle.NotWanted, 0, "left alone"}},
	},
	{
		name: "the line is stopped: agents are started, nothing is rebooted", steps: with(broken, allLevers), now: 24, env: hold(60),
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.Due, 14, "started again"},
			{recovery, lifecycle.Later, 60, "recovery is stopped until then by bmdb: 900 of 1000 machines fell silent"},
		},
	},
	{
		name: "a person stopped the line", steps: with(broken, allLevers), now: 24, env: hold(0),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Waiting, 0, "`ironherd recovery resume`"}},
	},
	{
		name: "a stop that is over", steps: with(broken, allLevers), now: 24, env: hold(20),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 23, "metal reboots it"}},
	},
}
