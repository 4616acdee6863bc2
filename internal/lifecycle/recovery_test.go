package lifecycle_test

import (
	"strings"
	"testing"
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
		name: "no step is taken while a listener has no room", steps: with(broken, allLevers), now: 24, env: full(20, 61),
		state: fleet.StateSilent,
		want:  []due{{agentStart, lifecycle.Later, 61, "started again"}, {recovery, lifecycle.Later, 71, "metal reboots it"}},
	},
	{
		name: "nor the next one", steps: with(broken, allLevers, repair(24, fleet.RungReboot, nil)), now: 40, env: full(30, 61),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Later, 61, "metal reboots it; not before then, because an agent listener"}},
	},
	{
		name: "nor one for an installed system that may have found no room", steps: with(written, allLevers), now: 31, env: full(25, 61),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Later, 71, "metal reboots it"}},
	},
	{
		name: "whether a host answers has nothing to do with the room of a listener", now: 43, env: full(1, 100),
		steps: with(active, allLevers, backoff(agentStart, 50, "dial"), unanswered(2, 32)),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 42, "metal reboots it"}},
	},
	{
		name: "what the provider cannot do is no step", steps: with(broken, levers(fleet.LeverPower)), now: 24,
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 23, "metal switches it off and on"}},
	},
	{
		name: "what is off cannot be rebooted: it is switched on", steps: with(broken, allLevers, offAt(20)), now: 24,
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 23, "metal switches it off and on"}},
	},
	{
		name: "nor is it rebooted when that has not helped", now: 50,
		steps: with(broken, allLevers, offAt(20), repair(40, fleet.RungPowerCycle, map[fleet.Rung]int{fleet.RungPowerCycle: 1})),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 50, "quarantined"}},
	},
	{
		name: "what is off is rebooted where the policy allows no power cycle", steps: with(broken, allLevers, offAt(20)), now: 24,
		env:   func(e *fleet.Environment) { e.Policy.RecoveryPowerCycles = 0 },
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 23, "metal reboots it"}},
	},
	{
		name: "where nothing can restart the host, starting an agent is tried for ever", steps: broken, now: 240,
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.Due, 14, "started again"},
			{recovery, lifecycle.NotWanted, 0, "it is tried again and again, because recovery has no step for it; metal cannot restart it: restart it yourself"},
		},
	},
	{
		name: "where the policy allows no step, a person may", steps: with(broken, allLevers), now: 240,
		env:   func(e *fleet.Environment) { e.Policy.RecoveryReboots, e.Policy.RecoveryPowerCycles = 0, 0 },
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.NotWanted, 0, "a person can restart the machine (`ironherd machine reboot m-1 --reason WHY`)"}},
	},
	{
		name: "a host that does not let us in is not restarted: an agent is tried for ever", steps: with(broken, allLevers, answers(fleet.AnswerRefused)), now: 240,
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.Due, 14, "started again"},
			{recovery, lifecycle.NotWanted, 0, "the host does not let us in, which a restart does not change"},
		},
	},
	{
		name: "nor is it restarted once more", now: 240,
		steps: with(broken, allLevers, repair(24, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 1}), answers(fleet.AnswerRefused)),
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.Due, 25, "started again"},
			{recovery, lifecycle.NotWanted, 0, "the host does not let us in, which a restart does not change"},
		},
	},
	{
		name: "one that is off since is switched on", steps: with(broken, allLevers, answers(fleet.AnswerRefused), offAt(20)), now: 240,
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 23, "metal switches it off and on"}},
	},
	{
		name: "a host that refuses a connection is restarted", steps: with(broken, allLevers, answered), now: 240,
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.Due, 14, "started again"},
			{recovery, lifecycle.Due, 23, "metal reboots it"},
		},
	},
	{
		name: "an agent that was started there has to speak: else a person is needed", now: 36,
		steps: with(broken[:4:4], started(25, 2), repair(25, fleet.RungAgentStart, map[fleet.Rung]int{fleet.RungAgentStart: 1})),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 35, "quarantined for a person"}},
	},
	{
		name: "after a reboot the agent is started again", steps: with(broken, allLevers, repair(24, fleet.RungReboot, nil)), now: 24.5,
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.Later, 25, "by recovery was tried: the agent is started again"},
			{recovery, lifecycle.Later, 34, "reboot was tried at 2026-11-21 00:24:00 UTC; without a sign of life 10m0s later: metal reboots it"},
		},
	},
	{
		name: "where a step has little time, its agent is started before the next step", now: 24.25,
		steps: with(broken, allLevers, repair(24, fleet.RungReboot, nil)),
		env:   func(e *fleet.Environment) { e.Policy.RecoveryStepTimeout = 90 * time.Second },
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.Later, 24.5, "by recovery was tried: the agent is started again"},
			{recovery, lifecycle.Later, 25.5, "reboot was tried at 2026-11-21 00:24:00 UTC; without a sign of life 1m30s later"},
		},
	},
	{
		name: "an agent that was started again has to speak", now: 26,
		steps: with(broken, allLevers, started(25, 2), repair(25, fleet.RungAgentStart, map[fleet.Rung]int{fleet.RungAgentStart: 1})),
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.NotWanted, 0, "takeover generation 2"},
			{recovery, lifecycle.Later, 35, "agent-start was tried at 2026-11-21 00:25:00 UTC; without a sign of life 10m0s later: metal reboots it"},
		},
	},
	{
		name: "an agent that was started after a restart has to speak before another machine has its turn", now: 26,
		steps: with(broken, allLevers, started(25, 2), repair(25, fleet.RungAgentStart, map[fleet.Rung]int{fleet.RungReboot: 1, fleet.RungAgentStart: 1})),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Later, 35, "agent-start was tried at 2026-11-21 00:25:00 UTC"}},
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
		steps: with(known, started(24.5, 2), seen(25, 25.5, 2), again, repair(24, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 2})),
		state: fleet.StateAvailable,
		want: []due{
			{agentStart, lifecycle.Later, 35.5, "silent for 10m0s"},
			{recovery, lifecycle.NotWanted, 0, "not silent"},
		},
	},
	{
		name: "an agent was started after the reboot of a machine whose boot nobody knew: the reboot may be late", now: 26,
		steps: with(asked, started(24.5, 2), seen(25, 25.5, 2), func(r *fleet.Record) { r.AgentStarted.BootID = "boot-1" },
			repair(24.5, fleet.RungAgentStart, map[fleet.Rung]int{fleet.RungReboot: 1, fleet.RungAgentStart: 1}), ended),
		state: fleet.StateInstalling, reason: "a restart by recovery may still come: an install would be cut",
		want: []due{
			{install, lifecycle.Later, 34.5, "an install would be cut"},
			{recovery, lifecycle.NotWanted, 0, "not silent"},
		},
	},
	{
		name: "a heartbeat of the agent from before the restart does not: its step has its time", now: 26,
		steps: with(asked, allLevers, seen(3, 25.5, 1), repair(24, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 2}), madeUnder(1)),
		state: fleet.StateInstalling, reason: "the reboot by recovery may still come: an install would be cut",
		want: []due{
			{agentStart, lifecycle.Later, 27, "the agent speaks with the same boot ID, and is started again when it falls silent"},
			{recovery, lifecycle.Later, 34, "the machine is heard with the same boot ID; if it is so still 10m0s later, it was not restarted"},
			{install, lifecycle.Later, 34, "an install would be cut"},
		},
	},
	{
		name: "the agent from before the restart falls silent: it is started again, and the next step waits", now: 28,
		steps: with(known, allLevers, seen(3, 25.5, 1), repair(24, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 2}), madeUnder(1)),
		state: fleet.StateAvailable, reason: "the agent speaks, with the boot ID from before: the reboot by recovery may still come",
		want: []due{
			{agentStart, lifecycle.Due, 27, "is started again when it falls silent"},
			{recovery, lifecycle.Later, 35.5, "the machine was heard last at 2026-11-21 00:25:30 UTC; without a sign of life 10m0s later: metal switches it off and on"},
		},
	},
	{
		name: "it is heard with another boot ID", now: 28,
		steps: with(asked, allLevers, seen(3, 27.5, 1), again, repair(24, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 2}), madeUnder(1)),
		state: fleet.StateInstalling,
		want: []due{
			{agentStart, lifecycle.Later, 37.5, "silent for 10m0s"},
			{recovery, lifecycle.NotWanted, 0, "not silent"},
			{install, lifecycle.Due, 3, "with its next heartbeat"},
		},
	},
	{
		name: "the time of the step is over, and the agent from before is heard: the step ends, and no other is taken", now: 34.5,
		steps: with(known, allLevers, seen(3, 34.4, 1), repair(24, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 2}), madeUnder(1)),
		state: fleet.StateAvailable,
		want:  []due{{recovery, lifecycle.Due, 34, "it was not restarted"}},
	},
	{
		name: "a step that has ended so", now: 36,
		steps: with(asked, allLevers, seen(3, 35.5, 1), repair(24, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 2}), ended),
		state: fleet.StateInstalling,
		want: []due{
			{agentStart, lifecycle.Later, 45.5, "silent for 10m0s"},
			{recovery, lifecycle.NotWanted, 0, "not silent"},
			{install, lifecycle.Due, 3, "with its next heartbeat"},
		},
	},
	{
		name: "another agent was started before the restart: that may come still", now: 26.5,
		steps: with(known, allLevers, started(25, 2), seen(26, 26, 2), repair(24, fleet.RungReboot, nil), madeUnder(1), wantInstall(10, 1)),
		state: fleet.StateInstalling,
		want: []due{
			{agentStart, lifecycle.Later, 27.5, "is started again when it falls silent"},
			{recovery, lifecycle.NotWanted, 0, "not silent"},
			{install, lifecycle.Later, 34, "an install would be cut"},
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
		name: "an installed system does not come up: many of them show first that the fault is ours", steps: with(written, allLevers), now: 21,
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.NotWanted, 0, "booting"},
			{recovery, lifecycle.Later, 30, "and there is no sign of life within 10m0s more: metal reboots it"},
		},
	},
	{
		name: "then it is rebooted", steps: with(written, allLevers), now: 31,
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 30, "metal reboots it"}},
	},
	{
		name: "the policy allows no step any more after a reboot: its agent is started again and again", now: 60,
		steps: with(broken, repair(24, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 1}), started(36, 2)),
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.Later, 66, "it is started again"},
			{recovery, lifecycle.NotWanted, 0, "starting it again fails; it is tried again and again"},
		},
	},
	{
		name: "its provider reinstalls it, for longer than a step may take", now: 60,
		steps: with(broken, allLevers, repair(30, fleet.RungReinstall, map[fleet.Rung]int{fleet.RungReboot: 2, fleet.RungPowerCycle: 1}), provided(31, fleet.ProviderStatusCreating)),
		state: fleet.StateSilent, reason: "metal makes or reinstalls the machine, since 2026-11-21 00:31:00 UTC",
		want: []due{
			{agentStart, lifecycle.Waiting, 0, "waiting for the provider: creating"},
			{recovery, lifecycle.Later, 31 + 1440, "metal makes or reinstalls the machine"},
		},
	},
	{
		name: "it reinstalls it still after a day: a person has to look there", now: 31 + 1440,
		steps: with(broken, allLevers, repair(30, fleet.RungReinstall, nil), provided(31, fleet.ProviderStatusCreating)),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 31 + 1440, "if it does so still a day later, and nothing is heard of it: it is quarantined"}},
	},
	{
		name: "somebody has it reinstalled whose agent speaks: its silence is noticed in time", now: 4,
		steps: with(known, allLevers, provided(3.5, fleet.ProviderStatusCreating)), state: fleet.StateAvailable,
		want: []due{{agentStart, lifecycle.Later, 13, "it is started again"}},
	},
	{
		name: "recovery has no step, and it is reinstalled for longer than a day", now: 31 + 1440,
		steps: with(broken, provided(31, fleet.ProviderStatusCreating)), state: fleet.StateSilent,
		want: []due{{recovery, lifecycle.Due, 31 + 1440, "it is quarantined"}},
	},
	{
		name: "it has reinstalled it: the time of the step begins", now: 64,
		steps: with(broken, allLevers, repair(30, fleet.RungReinstall, map[fleet.Rung]int{fleet.RungReboot: 2, fleet.RungPowerCycle: 1}), provided(62, fleet.ProviderStatusActive)),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Later, 72, "without a sign of life 10m0s later: it is quarantined"}},
	},
	{
		name: "it comes up after the reboot", now: 23,
		steps: with(written, allLevers, repair(21, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 1}), installed(22, 1)),
		state: fleet.StateInstalled,
		want:  []due{{recovery, lifecycle.NotWanted, 0, "left alone"}},
	},
	{
		name: "recovery is stopped: agents are started, nothing is rebooted", steps: with(broken, allLevers), now: 24, env: hold(60),
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.Due, 14, "started again"},
			{recovery, lifecycle.Later, 60, "not before 2026-11-21 01:00:00 UTC, because ironherd stopped recovery until then: 900 of 1000 machines fell silent"},
		},
	},
	{
		name: "a person stopped recovery", steps: with(broken, allLevers), now: 24, env: hold(0),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Waiting, 0, "`ironherd recovery resume`"}},
	},
	{
		name: "a stop that is over", steps: with(broken, allLevers), now: 24, env: hold(20),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 23, "metal reboots it"}},
	},
	{
		name: "a host that does not answer is tried again", steps: with(active, allLevers, backoff(agentStart, 6, "dial"), unanswered(2)), now: 5,
		state: fleet.StateProvided,
		want: []due{
			{agentStart, lifecycle.Later, 6, "in backoff after a failure: dial"},
			{recovery, lifecycle.Later, 42, "when the host has not answered for 30m0s, and there is no sign of life within 10m0s more: metal reboots it"},
		},
	},
	{
		name: "nor does one whose installed system never came up, and that is to be installed anew", now: 65,
		steps: with(written, allLevers, wantInstall(8, 2), backoff(agentStart, 70, "dial"), unanswered(20, 50)),
		state: fleet.StateSilent, reason: "the host has not answered for 30m0s",
		want: []due{{recovery, lifecycle.Due, 60, "metal reboots it"}},
	},
	{
		name: "an installed system may run still on one that is to be reinstalled", now: 65,
		steps: with(written, allLevers, installed(7, 1), wantInstall(8, 2), backoff(agentStart, 70, "dial"), unanswered(20)),
		state: fleet.StateProvided,
		want:  []due{{recovery, lifecycle.NotWanted, 0, "an installed system may run there"}},
	},
	{
		name: "it has never answered", steps: with(active, allLevers, backoff(agentStart, 50, "dial"), unanswered(2)), now: 33,
		state: fleet.StateSilent, reason: "the host has not answered for 30m0s",
		want: []due{{recovery, lifecycle.Later, 42, "metal reboots it"}},
	},
	{
		name: "it is rebooted", steps: with(active, allLevers, backoff(agentStart, 50, "dial"), unanswered(2, 32)), now: 43,
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 42, "metal reboots it"}},
	},
	{
		name: "a power cycle leaves it off, and nobody tries it", now: 60,
		steps: with(active, allLevers, repair(43, fleet.RungPowerCycle, map[fleet.Rung]int{fleet.RungReboot: 2, fleet.RungPowerCycle: 1}), offAt(44)),
		state: fleet.StateSilent, reason: "without a sign of life 10m0s later",
		want: []due{{recovery, lifecycle.Due, 53, "power-cycle was tried at"}},
	},
	{
		name: "after the reboot nobody knows yet whether it answers", now: 43.5,
		steps: with(active, allLevers, repair(43, fleet.RungReboot, nil)),
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.Later, 44, "needs an agent"},
			{recovery, lifecycle.Waiting, 0, "reboot was tried at 2026-11-21 00:43:00 UTC; the next start of an agent shows whether the host answers"},
		},
	},
	{
		name: "nobody has tried in its time: the next step waits for that", now: 54,
		steps: with(active, allLevers, repair(43, fleet.RungReboot, nil)),
		state: fleet.StateSilent,
		want: []due{
			{agentStart, lifecycle.Due, 44, "needs an agent"},
			{recovery, lifecycle.Waiting, 0, "the next start of an agent shows whether the host answers"},
		},
	},
	{
		name: "it does not: the ladder goes on", now: 53,
		steps: with(active, allLevers, repair(43, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 2}), backoff(agentStart, 60, "dial"), unanswered(44)),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 53, "off and on"}},
	},
	{
		name: "it does, and refuses: a restart is not what it needs", now: 53,
		steps: with(active, allLevers, repair(43, fleet.RungReboot, nil), backoff(agentStart, 60, "no key"), answered),
		state: fleet.StateProvided,
		want:  []due{{recovery, lifecycle.NotWanted, 0, "the host answers"}},
	},
	{
		name: "a host that has refused from the beginning is not restarted", now: 90,
		steps: with(active, allLevers, backoff(agentStart, 95, "no key"), answered),
		state: fleet.StateProvided,
		want:  []due{{agentStart, lifecycle.Later, 95, "no key"}, {recovery, lifecycle.NotWanted, 0, "the host answers"}},
	},
	{
		name: "a host that nobody can restart is tried for ever", now: 90,
		steps: with(active, backoff(agentStart, 95, "dial"), unanswered(2)),
		state: fleet.StateProvided,
		want:  []due{{agentStart, lifecycle.Later, 95, "dial"}, {recovery, lifecycle.NotWanted, 0, "it is tried again and again"}},
	},
	{
		name: "an installed system that does not answer is left to a person, whatever is wanted on it", now: 90,
		steps: with(reinstall, allLevers, backoff(agentStart, 95, "dial"), unanswered(22)),
		state: fleet.StateProvided,
		want:  []due{{recovery, lifecycle.NotWanted, 0, "`ironherd machine reboot m-1 --reason WHY`"}},
	},
	{
		name: "an installed system that does not answer, and that its provider cannot restart", now: 90,
		steps: with(reinstall, levers(fleet.LeverRelease), backoff(agentStart, 95, "dial"), unanswered(22)),
		state: fleet.StateProvided,
		want:  []due{{recovery, lifecycle.NotWanted, 0, "metal cannot restart it: restart it yourself"}},
	},
	{
		name: "during maintenance no host has to answer", now: 60,
		steps: with(active, allLevers, backoff(agentStart, 62, "dial"), unanswered(2), maintenance(10, 50, true)),
		state: fleet.StateProvided,
		want:  []due{{recovery, lifecycle.Later, 90, "metal reboots it"}},
	},
	{
		name: "after a quarantine, whose end is that of a maintenance, an agent has its time to speak", now: 41,
		steps: with(known, allLevers, maintenance(40, 40, true)),
		state: fleet.StateStarted, reason: "was not heard since",
		want: []due{
			{agentStart, lifecycle.Later, 50, "silent for 10m0s"},
			{recovery, lifecycle.NotWanted, 0, "the agent is not silent"},
		},
	},
}

// TestStepOver: when a step counts as one that has restarted nothing.
func TestStepOver(t *testing.T) {
	t.Parallel()
	rebooted := []step{repair(24, fleet.RungReboot, nil), madeUnder(1)}
	for name, c := range map[string]struct {
		steps []step
		now   float64
		want  bool
	}{
		"it is heard as before":      {append([]step{seen(3, 34, 1)}, rebooted...), 34.5, true},
		"its time is not over":       {append([]step{seen(3, 33, 1)}, rebooted...), 33.5, false},
		"it has fallen silent":       {append([]step{seen(3, 30, 1)}, rebooted...), 34.5, false},
		"it was never heard":         {rebooted, 34.5, false},
		"another boot was heard":     {append([]step{seen(3, 34, 1), again}, rebooted...), 34.5, false},
		"the step was no restart":    {[]step{seen(3, 34, 1), repair(24, fleet.RungAgentStart, nil)}, 34.5, false},
		"it has been ended that way": {append([]step{seen(3, 34, 1)}, append(rebooted, ended)...), 34.5, false},
	} {
		if got := lifecycle.StepOver(record(with(known, c.steps...)...), environment(), at(c.now)); got != "" != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestUnderRecovery: what counts against the limit of recovery.
func TestUnderRecovery(t *testing.T) {
	t.Parallel()
	rebooted := map[fleet.Rung]int{fleet.RungReboot: 1}
	same := func(r *fleet.Record) { r.AgentStarted.BootID = "boot-1" }
	again := func(r *fleet.Record) { r.AgentStarted.BootID = "boot-2" }
	for name, c := range map[string]struct {
		steps []step
		now   float64
		want  bool
	}{
		"nothing was done":                              {broken, 24, false},
		"it was rebooted":                               {with(broken, repair(24, fleet.RungReboot, rebooted)), 25, true},
		"its time is over":                              {with(broken, repair(24, fleet.RungReboot, rebooted)), 34, false},
		"its provider reinstalls it still":              {with(broken, repair(30, fleet.RungReinstall, nil), provided(31, fleet.ProviderStatusCreating)), 60, true},
		"it has reinstalled it":                         {with(broken, repair(30, fleet.RungReinstall, nil), provided(62, fleet.ProviderStatusActive)), 71, true},
		"its agent was started, and has not spoken":     {with(broken, started(25, 2), again, repair(25, fleet.RungAgentStart, rebooted)), 26, true},
		"that has spoken":                               {with(broken, started(25, 2), again, seen(26, 26, 2), repair(25, fleet.RungAgentStart, rebooted)), 27, false},
		"the agent was started without a restart":       {with(broken, started(25, 2), repair(25, fleet.RungAgentStart, nil)), 26, false},
		"the restart was that of an earlier trouble":    {with(broken, started(25, 2), same, repair(25, fleet.RungAgentStart, rebooted)), 26, false},
		"the host has never answered, and was rebooted": {with(active, allLevers, repair(24, fleet.RungReboot, rebooted)), 25, true},
	} {
		if got := lifecycle.UnderRecovery(record(c.steps...), environment(), at(c.now)); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestAStopThatIsOver: what is told of a step does not speak of a stop of recovery that has ended.
func TestAStopThatIsOver(t *testing.T) {
	t.Parallel()
	env := environment()
	hold(60)(&env)
	for minute, told := range map[float64]bool{50: true, 70: false} {
		reason := lifecycle.Decide(record(with(broken, allLevers)...), env, at(minute)).For(recovery).Reason
		if got := strings.Contains(reason, "stopped recovery"); got != told {
			t.Errorf("in minute %v: %q", minute, reason)
		}
	}
}
