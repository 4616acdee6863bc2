package lifecycle_test

import (
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

var operations = []scenario{
	{
		name: "a reboot that was asked for", steps: with(known, wantOperation(4, 1, fleet.OperationReboot)), now: 5,
		state: fleet.StateAvailable,
		want: []due{
			{operation, lifecycle.Due, 4, "reboot was asked for by ada: new firmware"},
			{recovery, lifecycle.Waiting, 0, "reboot, asked for by ada, is under way"},
		},
	},
	{
		name: "the process died after it had committed the attempt", now: 6,
		steps: with(known, wantOperation(4, 1, fleet.OperationReboot), operating(5, 1, 0, 0)),
		state: fleet.StateAvailable,
		want:  []due{{operation, lifecycle.Due, 5, "attempt 1 at reboot was begun, and is to be repeated"}},
	},
	{
		name: "the provider has accepted it", now: 5.5,
		steps: with(known, wantOperation(4, 1, fleet.OperationReboot), operating(5, 1, 5, 0)),
		state: fleet.StateAvailable,
		want: []due{
			{operation, lifecycle.Later, 6, "waiting for a sign of life after the restart"},
			{agentStart, lifecycle.Later, 6, "the machine was restarted"},
		},
	},
	{
		name: "it is looked at again and again", now: 7.5,
		steps: with(known, wantOperation(4, 1, fleet.OperationReboot), operating(5, 1, 5, 7)),
		state: fleet.StateAvailable,
		want:  []due{{operation, lifecycle.Later, 8, "waiting for a sign of life"}},
	},
	{
		name: "another boot ID is the evidence", now: 7.5,
		steps: with(known, wantOperation(4, 1, fleet.OperationReboot), operating(5, 1, 5, 7), started(7, 2), func(r *fleet.Record) {
			r.AgentStarted.BootID = "boot-2"
		}),
		state: fleet.StateStarted,
		want:  []due{{operation, lifecycle.Due, 5, "reboot is done: an agent was started under another boot ID"}},
	},
	{
		name: "the same boot ID is none", now: 7.5,
		steps: with(known, wantOperation(4, 1, fleet.OperationReboot), operating(5, 1, 5, 7), started(7, 2), func(r *fleet.Record) {
			r.AgentStarted.BootID = "boot-1"
		}),
		state: fleet.StateStarted,
		want:  []due{{operation, lifecycle.Later, 8, "waiting for"}},
	},
	{
		name: "an operation that has ended", now: 30,
		steps: with(known, seen(3, 29, 1), wantOperation(4, 1, fleet.OperationReboot), operating(5, 1, 5, 7), operated(8, 1, true)),
		state: fleet.StateAvailable,
		want:  []due{{operation, lifecycle.NotWanted, 0, "nothing was asked for"}},
	},
	{
		name: "switched off by a person: it stays so", now: 500,
		steps: with(known, wantOperation(4, 1, fleet.OperationPowerOff), operating(5, 1, 5, 7), operated(8, 1, true)),
		state: fleet.StateOff,
		want: []due{
			{agentStart, lifecycle.NotWanted, 0, "switched off by ada: new firmware; `ironherd machine power on`"},
			{recovery, lifecycle.NotWanted, 0, "switched off by ada"},
		},
	},
	{
		name: "a release that was asked for", now: 5, steps: with(known, wantOperation(4, 2, fleet.OperationRelease)),
		state: fleet.StateReleasing,
		want: []due{
			{agentStart, lifecycle.NotWanted, 0, "release, asked for by ada"},
			{install, lifecycle.NotWanted, 0, "no operating system"},
			{operation, lifecycle.Due, 4, "release was asked for"},
			{recovery, lifecycle.NotWanted, 0, "release, asked for by ada"},
		},
	},
	{
		name: "a release that failed leaves the machine as it was", now: 9,
		steps: with(known, wantOperation(4, 2, fleet.OperationRelease), operating(5, 2, 0, 0), operated(6, 2, false)),
		state: fleet.StateAvailable,
		want:  []due{{operation, lifecycle.NotWanted, 0, "nothing was asked for"}},
	},
	{
		name: "after a restore nothing is released", now: 5,
		steps: with(known, wantOperation(4, 2, fleet.OperationRelease)), // rule 11
		env:   func(e *fleet.Environment) { e.Restored = "counter 7 beside the file, 5 in it" },
		state: fleet.StateReleasing,
		want:  []due{{operation, lifecycle.Waiting, 0, "accept-restore"}},
	},
	{
		name: "the policy replaces what the provider gave up", now: 5,
		steps: []step{provided(1, fleet.ProviderStatusFailed), allLevers},
		env:   func(e *fleet.Environment) { e.Policy.ReplaceFailed = true },
		state: fleet.StateFailed,
		want:  []due{{operation, lifecycle.Due, 1, "the policy has it replaced"}},
	},
	{
		name: "no policy replaces it: a person has to", now: 5, steps: []step{provided(1, fleet.ProviderStatusFailed), allLevers},
		state: fleet.StateFailed,
		want: []due{
			{operation, lifecycle.NotWanted, 0, "nothing"}, {agentStart, lifecycle.NotWanted, 0, "`ironherd machine replace` gives it back"},
		},
	},
	{
		name: "nor can its provider be asked to take it back", now: 5, steps: []step{provided(1, fleet.ProviderStatusFailed)},
		state: fleet.StateFailed, reason: "metal cannot be asked to take it back",
		want: []due{{agentStart, lifecycle.NotWanted, 0, "`ironherd machine forget`"}},
	},
	{
		name: "during a maintenance nothing touches the host", now: 13, steps: with(asked, maintenance(4, 60, false)),
		state: fleet.StateMaintenance,
		want: []due{
			{install, lifecycle.Later, 60, "maintenance by ada until 2026-11-21 01:00:00: a new fan"},
			{agentStart, lifecycle.Later, 70, "silent for 10m0s"},
			{operation, lifecycle.Later, 60, "the maintenance by ada ends"},
		},
	},
	{
		name: "a maintenance without an end", now: 500, steps: with(asked, maintenance(4, 0, false)),
		state: fleet.StateMaintenance,
		want:  []due{{install, lifecycle.Waiting, 0, "`ironherd machine maintenance end`"}},
	},
	{
		name: "silence counts from the end of a maintenance", now: 65, steps: with(known, maintenance(4, 60, true)),
		state: fleet.StateAvailable,
		want:  []due{{agentStart, lifecycle.Later, 70, "silent"}, {operation, lifecycle.NotWanted, 0, "nothing"}},
	},
	{
		name: "an install that was called off before anybody had it", steps: with(reinstall, cancelled(21, 2)), now: 22,
		state: fleet.StateInstalled,
		want:  []due{{install, lifecycle.NotWanted, 0, "called off by ada: the wrong image"}, {agentStart, lifecycle.NotWanted, 0, "no agent"}},
	},
	{
		name: "an install that is called off while it runs", steps: with(underWay, cancelled(5, 1)), now: 6,
		state: fleet.StateInstalling,
		want:  []due{{install, lifecycle.Later, 19, "the agent is told with its next heartbeat"}},
	},
	{
		name: "an install that was called off while it was written", now: 8,
		steps: with(underWay, seen(3, 7, 1), cancelled(5, 1), report(6, 1, 1, false), wrote("/dev/sda")),
		state: fleet.StateAvailable, reason: "what the disk holds is undefined",
		want: []due{{install, lifecycle.NotWanted, 0, "called off by ada"}},
	},
	{
		name: "an install that was called off before it wrote anything", now: 8,
		steps: with(underWay, seen(3, 7, 1), cancelled(5, 1), report(6, 1, 1, false)),
		state: fleet.StateAvailable, reason: "called off before anything was written",
		want: []due{{install, lifecycle.NotWanted, 0, "called off by ada"}},
	},
	{
		name: "an install that was called off, of which nobody knows what it wrote", now: 30,
		steps: with(underWay, seen(3, 29, 1), cancelled(5, 1), report(19, 1, 1, false), wrote(fleet.DiskUnknown)),
		state: fleet.StateAvailable, reason: "what the disk holds is undefined",
	},
	{
		name: "an earlier attempt may have written", now: 8,
		steps: with(underWay, seen(3, 7, 1), attempt(5, 1, 2), cancelled(5, 1), report(6, 1, 2, false)),
		state: fleet.StateAvailable, reason: "what the disk holds is undefined",
	},
}
