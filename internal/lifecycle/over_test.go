package lifecycle_test

import (
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// cycled are the steps of a machine that was switched off and on at last.
var cycled = map[fleet.Rung]int{fleet.RungReboot: 2, fleet.RungPowerCycle: 1}

// over are machines whose trouble, and whose steps of recovery, are over, or are none of ours.
var over = []scenario{
	{
		name: "a step of before the system came up is over, also when it is to be reinstalled", now: 3001,
		steps: with(written, allLevers, repair(21, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 1}), installed(22, 1), wantInstall(3000, 2)),
		state: fleet.StateProvided,
		want: []due{
			{agentStart, lifecycle.Due, 3000, ""},
			{recovery, lifecycle.NotWanted, 0, "no agent was started"},
		},
	},
	{
		name: "a step after which an agent was started in another boot is over", now: 45,
		steps: with(active, allLevers, repair(24, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 1}), func(r *fleet.Record) { r.Repair.BootID = "" }, started(44, 1)),
		state: fleet.StateStarted,
		want:  []due{{recovery, lifecycle.NotWanted, 0, "the agent is not silent"}},
	},
	{
		name: "the agent that a step has started is heard at that instant: the step is over", now: 26,
		steps: with(known, allLevers, started(25, 2), seen(25, 25, 2), repair(25, fleet.RungAgentStart, map[fleet.Rung]int{fleet.RungAgentStart: 1})),
		state: fleet.StateAvailable,
		want:  []due{{recovery, lifecycle.NotWanted, 0, "the agent is not silent"}},
	},
	{
		name: "an agent that was started before a maintenance is started again after it", now: 81,
		steps: with(broken[:4:4], allLevers, started(14, 2), repair(14, fleet.RungAgentStart, map[fleet.Rung]int{fleet.RungAgentStart: 1}), maintenance(16, 50, true)),
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.Due, 80, "is started again"},
			{recovery, lifecycle.Waiting, 0, "it is started again first"},
		},
	},
	{
		name: "the start of an agent has only waited for its turn: it is tried before anything is restarted", now: 60,
		steps: with(broken, allLevers, func(r *fleet.Record) {
			b := r.Backoffs[agentStart]
			b.Since = time.Time{}
			r.Backoffs[agentStart] = b
		}),
		state: fleet.StateSilent,
		want:  []due{{agentStart, lifecycle.Due, 14, "is started again"}, {recovery, lifecycle.Waiting, 0, "it is started again first"}},
	},
	{
		name: "it was switched on: an agent is started at once, and nothing restarted before that can have helped", now: 2001,
		steps: with(broken, allLevers, provided(2000, fleet.ProviderStatusActive)),
		state: fleet.StateSilent,
		want:  []due{{agentStart, lifecycle.Due, 14, "is started again"}, {recovery, lifecycle.Later, 2010, "metal reboots it"}},
	},
	{
		name: "it was switched on while a step was waited for: that has its time from then on", now: 36,
		steps: with(broken, allLevers, repair(24, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 1}), provided(33, fleet.ProviderStatusActive)),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Later, 43, "reboot was tried at 2026-11-21 00:24:00 UTC; without a sign of life 10m0s later"}},
	},
	{
		name: "an install that is asked for while a host is restarted that never answered ends no step", now: 46,
		steps: with(active, allLevers, repair(43, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 1}), backoff(agentStart, 60, "dial"), unanswered(44), wantInstall(45, 1)),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Later, 53, "reboot was tried"}},
	},
	{
		name: "an install that is asked for anew begins the ladder anew", now: 400,
		steps: with(written, allLevers, repair(21, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 1}), wantInstall(390, 2), backoff(agentStart, 401, "dial"), unanswered(391)),
		state: fleet.StateProvided,
		want:  []due{{recovery, lifecycle.Later, 431, "when the host has not answered for 30m0s"}},
	},
	{
		name: "a power cycle that has left the machine off is not over when another install is asked for: it is to be switched on", now: 60,
		steps: with(written, allLevers, repair(40, fleet.RungPowerCycle, cycled), wantInstall(41, 2), offAt(50)),
		state: fleet.StateSilent,
		want:  []due{{agentStart, lifecycle.Waiting, 0, "waiting for the provider"}, {recovery, lifecycle.Due, 50, "and has left the machine off; without a sign of life 10m0s later it is switched on"}},
	},
	{
		name: "a power cycle that has left the machine off while recovery is stopped: that is said, for nobody else switches it on", now: 60,
		steps: with(written, allLevers, repair(40, fleet.RungPowerCycle, cycled), wantInstall(41, 2), offAt(50)), env: hold(0),
		state: fleet.StateSilent, reason: "and has left the machine off; recovery is stopped by ironherd",
		want: []due{{recovery, lifecycle.Waiting, 0, "and has left the machine off; recovery is stopped by ironherd (900 of 1000 machines fell silent); `ironherd recovery resume` ends that"}},
	},
	{
		name: "a power cycle that has left the machine off in a database that looks restored", now: 60,
		steps: with(written, allLevers, repair(40, fleet.RungPowerCycle, cycled), wantInstall(41, 2), offAt(50)),
		env:   func(e *fleet.Environment) { e.Restored = "counter 7 beside the file, 5 in it" },
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Waiting, 0, "and has left the machine off; the database looks restored"}},
	},
	{
		name: "off long after the power cycle, it is what a person has made of it", now: 200,
		steps: with(written, allLevers, repair(40, fleet.RungPowerCycle, cycled), wantInstall(41, 2), offAt(150)),
		state: fleet.StateProvisioning,
		want:  []due{{recovery, lifecycle.NotWanted, 0, "no agent was started"}},
	},
	{
		name: "once the machine is on, an agent is started on it for that install", now: 62,
		steps: with(written, allLevers, repair(40, fleet.RungPowerCycle, cycled), wantInstall(41, 2), provided(61, fleet.ProviderStatusActive)),
		state: fleet.StateProvided,
		want:  []due{{agentStart, lifecycle.Due, 61, "needs an agent"}, {recovery, lifecycle.NotWanted, 0, "no agent was started"}},
	},
	{
		name: "one that is on its way on needs no step", now: 62,
		steps: with(written, allLevers, repair(40, fleet.RungPowerCycle, cycled), wantInstall(41, 2), provided(61, fleet.ProviderStatusPowering)),
		state: fleet.StateProvisioning,
		want:  []due{{recovery, lifecycle.NotWanted, 0, "no agent was started"}},
	},
	{
		name: "a power cycle that was refused has not left off a machine that is to be reinstalled", now: 60,
		steps: with(written, allLevers, repair(40, fleet.RungPowerCycle, cycled), turnedDown, wantInstall(41, 2), offAt(50)),
		state: fleet.StateProvisioning,
		want:  []due{{recovery, lifecycle.NotWanted, 0, "no agent was started"}},
	},
	{
		name: "nothing of ours runs on a host that answers, and refuses, after a system was written that never came up", now: 65,
		steps: with(written, allLevers, func(r *fleet.Record) { r.Installed = &fleet.Installed{Generation: 0, At: at(0)} }, wantInstall(8, 2), backoff(agentStart, 70, "no key"), answered),
		state: fleet.StateProvided,
		want:  []due{{recovery, lifecycle.NotWanted, 0, "the host answers, and a restart is not what it needs"}},
	},
	{
		name: "a reboot that was refused restarts nothing: an agent that is heard is well, and gets its install at once", now: 26,
		steps: with(asked, allLevers, repair(24, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 1}), turnedDown, seen(3, 25.5, 1)),
		state: fleet.StateInstalling,
		want: []due{
			{agentStart, lifecycle.Later, 35.5, "when the agent has been silent for 10m0s"},
			{install, lifecycle.Due, 3, "handed to the agent with its next heartbeat"},
			{recovery, lifecycle.NotWanted, 0, "the agent is not silent"},
		},
	},
	{
		name: "the agent of a machine whose reboot was refused is started again at once, and the next step has its time", now: 25,
		steps: with(known, allLevers, repair(24, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 2}), turnedDown),
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.Due, 13, "it is started again"},
			{recovery, lifecycle.Later, 34, "metal refused the reboot at 2026-11-21 00:24:00 UTC; without a sign of life 10m0s later: metal switches it off and on"},
		},
	},
	{
		name: "an agent that was started after a refusal, and never speaks, has its time as after any step", now: 70,
		steps: with(known, allLevers, repair(30, fleet.RungAgentStart, map[fleet.Rung]int{fleet.RungReboot: 2, fleet.RungAgentStart: 1}), turnedDown,
			started(30, 2)),
		env: func(e *fleet.Environment) { e.Policy.RecoveryStepTimeout = 45 * time.Minute }, state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.NotWanted, 0, "the agent was started"},
			{recovery, lifecycle.Later, 75, "metal switches it off and on"},
		},
	},
	{
		name: "nor does one that was refused before its agent was started hold an install up", now: 26,
		steps: with(asked, allLevers, repair(24, fleet.RungAgentStart, map[fleet.Rung]int{fleet.RungReboot: 1, fleet.RungAgentStart: 1}), turnedDown,
			func(r *fleet.Record) { r.Repair.BootID = "" }, started(24, 2), seen(25, 25, 2)),
		state: fleet.StateInstalling,
		want:  []due{{install, lifecycle.Due, 25, "handed to the agent with its next heartbeat"}},
	},
	{
		name: "its provider makes it anew, because somebody has asked for that", now: 500,
		steps: with(broken, allLevers, backoff(agentStart, 501, "it is being made"), provided(30, fleet.ProviderStatusCreating)),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Later, 30 + 1440, "metal makes or reinstalls the machine, since 2026-11-21 00:30:00 UTC"}},
	},
	{
		name: "an agent is taken off a machine that returns also while its provider makes it anew: nothing else looks after it", now: 30,
		steps: with(reinstall, started(22, 2), cancelled(23, 2), provided(24, fleet.ProviderStatusCreating)),
		state: returning,
		want:  []due{{agentStart, lifecycle.Due, 23, "the agent is taken off the machine"}, {recovery, lifecycle.NotWanted, 0, "is left alone"}},
	},
	{
		name: "a step that has helped is over, also when another agent was started", now: 2020.5,
		steps: with(broken[:4:4], allLevers, repair(24, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 1}), started(25, 2), seen(26, 2000, 2), started(2020, 3)),
		state: fleet.StateStarted,
		want:  []due{{recovery, lifecycle.NotWanted, 0, "the agent is not silent"}},
	},
}

// TestAnInstallWaitsForASilentAgent: an install is handed out with a heartbeat. So nothing is told
// of it first while its agent is silent, however long it has been due.
func TestAnInstallWaitsForASilentAgent(t *testing.T) {
	t.Parallel()
	steps := with(underWay, report(5, 1, 1, false), backoff(agentStart, 74, "dial"))
	for _, levers := range []step{allLevers, func(*fleet.Record) {}} {
		plan := lifecycle.Decide(record(with(steps, levers)...), environment(), at(70))
		next, _ := plan.Next()
		if due := plan.For(install); plan.State != fleet.StateSilent || due.Verdict != lifecycle.Due || next.Process == install {
			t.Errorf("%s: install %s, first is %s: %s", plan.State, due.Verdict, next.Process, next.Reason)
		}
	}
	excused := lifecycle.Decide(record(with(asked, maintenance(4, 60, true))...), environment(), at(65))
	if next, _ := excused.Next(); excused.For(install).Verdict != lifecycle.Due || next.Process == install {
		t.Errorf("silent before a maintenance: first is %s: %s", next.Process, next.Reason)
	}
}
