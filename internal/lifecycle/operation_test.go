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
		want:  []due{{operation, lifecycle.Due, 5, "attempt 1 at reboot was begun, and it is not known that metal has accepted it"}},
	},
	{
		name: "the provider has accepted it", now: 5.5,
		steps: with(known, wantOperation(4, 1, fleet.OperationReboot), operating(5, 1, 5, 0)),
		state: fleet.StateAvailable,
		want: []due{
			{operation, lifecycle.Later, 6, "waiting for a sign of life with another boot ID"},
			{agentStart, lifecycle.Later, 6, "the machine was restarted"},
		},
	},
	{
		name: "the agent from before the reboot is heard: it is started again when it falls silent, and gets no install", now: 7,
		steps: with(asked, seen(3, 6.5, 1), wantOperation(4, 1, fleet.OperationReboot), operating(5, 1, 5, 0)),
		state: fleet.StateInstalling, reason: "reboot, asked for by ada, is under way: an install would be cut",
		want: []due{
			{agentStart, lifecycle.Later, 8, "the reboot that ada asked for may still come"},
			{operation, lifecycle.Due, 6, "waiting for a sign of life with another boot ID"},
			{install, lifecycle.Waiting, 0, "an install would be cut"},
		},
	},
	{
		name: "a reboot that never came: the machine is as it was", now: 21,
		steps: with(asked, seen(3, 20.5, 1), wantOperation(4, 1, fleet.OperationReboot), operating(5, 1, 5, 20), operated(20.2, 1, false)),
		state: fleet.StateInstalling,
		want: []due{
			{agentStart, lifecycle.Later, 30.5, "silent for 10m0s"},
			{install, lifecycle.Due, 3, "with its next heartbeat"},
			{recovery, lifecycle.NotWanted, 0, "not silent"},
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
		name: "nor is the one of an agent that was started in the boot from before, and has jumped into memory", now: 7.8,
		steps: with(known, wantOperation(4, 1, fleet.OperationReboot), operating(5, 1, 5, 7), started(7, 2), seen(7.5, 7.7, 2), again, func(r *fleet.Record) {
			r.AgentStarted.BootID = "boot-1"
		}),
		state: fleet.StateAvailable,
		want:  []due{{operation, lifecycle.Later, 8, "waiting for"}},
	},
	{
		name: "nor is the jump of an agent that was started before the reboot was asked for", now: 7.8,
		steps: with(agent, wantOperation(2.5, 1, fleet.OperationReboot), operating(3, 1, 3, 7), seen(3.5, 7.7, 1), again, hardware(4), func(r *fleet.Record) {
			r.AgentStarted.BootID = "boot-1"
		}),
		state: fleet.StateAvailable,
		want:  []due{{operation, lifecycle.Later, 8, "waiting for"}},
	},
	{
		name: "a power-off that was withdrawn may still come", now: 7,
		steps: with(asked, seen(3, 6.9, 1), wantOperation(4, 1, fleet.OperationPowerOff), operating(5, 1, 0, 0), operated(6, 1, false)),
		state: fleet.StateInstalling,
		want:  []due{{install, lifecycle.Later, 20, "the power-off that ada asked for may still come"}},
	},
	{
		name: "what was asked for before an operation that was withdrawn may still come", now: 7,
		steps: with(asked, seen(3, 6.9, 1), operating(5, 1, 5.5, 0), wantOperation(6, 2, fleet.OperationReboot), operated(6.5, 2, false)),
		state: fleet.StateInstalling, reason: "what was asked for before the reboot may still come: an install would be cut",
		want: []due{{install, lifecycle.Later, 20.5, "may still come"}},
	},
	{
		name: "an agent of another boot shows that it has come", now: 9,
		steps: with(asked, operating(5, 1, 5.5, 0), started(7, 2), seen(8, 8.9, 2), wantOperation(8, 2, fleet.OperationReboot), operated(8.5, 2, false), func(r *fleet.Record) {
			r.AgentStarted.BootID = "boot-2"
		}),
		state: fleet.StateInstalling,
		want:  []due{{install, lifecycle.Due, 8, ""}},
	},
	{
		name: "nobody knew the boot from before: an agent is the evidence, and the reboot may be late all the same", now: 9,
		steps: with(asked, wantOperation(4, 1, fleet.OperationReboot), operating(5, 1, 5, 7), started(7, 2), seen(8, 8.5, 2), operated(8.2, 1, true), func(r *fleet.Record) {
			r.AgentStarted.BootID, r.OperationAttempt.BootID = "boot-1", ""
		}),
		state: fleet.StateInstalling, reason: "the reboot that ada asked for may still come: an install would be cut",
		want: []due{
			{install, lifecycle.Later, 20, "an install would be cut"},
			{agentStart, lifecycle.Later, 18.5, "silent for 10m0s"},
		},
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
			{agentStart, lifecycle.NotWanted, 0, "switched off by ada: new firmware; `ironherd machine power on m-1 --reason WHY`"},
			{recovery, lifecycle.NotWanted, 0, "switched off by ada"},
		},
	},
	{
		name: "it was off when a release came to nothing: it stays so", now: 500,
		steps: with(known, allLevers, offAt(8), wantOperation(10, 2, fleet.OperationRelease), operated(11, 2, false)),
		state: fleet.StateOff, reason: "off already when the release that ada asked for came to nothing",
		want: []due{
			{agentStart, lifecycle.NotWanted, 0, "`ironherd machine power on m-1 --reason WHY`"},
			{recovery, lifecycle.NotWanted, 0, "off already when the release"},
		},
	},
	{
		name: "nor is it switched on when that was called off", now: 500,
		steps: with(known, allLevers, offAt(8), wantOperation(10, 2, fleet.OperationPowerOn), operated(11, 2, false)),
		state: fleet.StateOff, reason: "off already when the power-on that ada asked for came to nothing",
	},
	{
		name: "nor when switching it off once more came to nothing", now: 500,
		steps: with(known, allLevers, offAt(8), wantOperation(10, 2, fleet.OperationPowerOff), operated(11, 2, false)),
		state: fleet.StateOff, reason: "off already when the power-off that ada asked for came to nothing",
		want: []due{{recovery, lifecycle.NotWanted, 0, "off already when the power-off"}},
	},
	{
		name: "nor while it is being switched off once more", now: 500,
		steps: with(known, allLevers, offAt(8), wantOperation(10, 2, fleet.OperationPowerOff)),
		state: fleet.StateOff, reason: "off already when ada asked for the power-off: new firmware",
		want: []due{
			{operation, lifecycle.Due, 10, ""},
			{agentStart, lifecycle.NotWanted, 0, "`ironherd machine power on m-1 --reason WHY`"},
		},
	},
	{
		name: "nor is it given back when its provider gives it up then", now: 500,
		steps: with(known, allLevers, offAt(8), wantOperation(10, 2, fleet.OperationPowerOff), operated(11, 2, false), func(r *fleet.Record) {
			r.Provided.Status, r.Provided.At = fleet.ProviderStatusFailed, at(20)
		}),
		env:   func(e *fleet.Environment) { e.Policy.ReplaceFailed = true },
		state: fleet.StateFailed,
		want:  []due{{operation, lifecycle.NotWanted, 0, ""}},
	},
	{
		name: "it went off after a release came to nothing: it is repaired", now: 500,
		steps: with(known, allLevers, wantOperation(10, 2, fleet.OperationRelease), operated(11, 2, false), offAt(12), backoff(agentStart, 600, "refused")),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 23, "metal switches it off and on"}},
	},
	{
		name: "a machine without an agent that stays off is a person's", now: 90, steps: with(active, allLevers, offAt(60)),
		state: fleet.StateProvisioning,
		want: []due{
			{agentStart, lifecycle.Waiting, 0, "metal says that it is off (since 2026-11-21 01:00:00 UTC), and nobody has switched it off; " +
				"a person can restart the machine (`ironherd machine power on m-1 --reason WHY`)"},
		},
	},
	{
		name: "its provider says that it is off, and nobody has switched it off", now: 90, steps: with(up, offAt(60), allLevers),
		state: fleet.StateUnreachable, reason: "install generation 1; metal says that it is off (since 2026-11-21 01:00:00 UTC), and nobody has switched it off",
		want: []due{{recovery, lifecycle.NotWanted, 0, "a person can restart the machine (`ironherd machine power on m-1 --reason WHY`)"}},
	},
	{
		name: "its provider has reinstalled it for somebody else", now: 90, steps: with(up, erased(60), allLevers),
		state: fleet.StateUnreachable, reason: "metal was seen to reinstall its own operating system at 2026-11-21 01:00:00 UTC, and nothing is recorded here that asked for it",
		want: []due{
			{agentStart, lifecycle.NotWanted, 0, ""}, {install, lifecycle.NotWanted, 0, ""}, {recovery, lifecycle.NotWanted, 0, "recovery leaves it alone"},
		},
	},
	{
		name: "nor can its provider switch it on", now: 90, steps: with(up, offAt(60), levers(fleet.LeverReboot)),
		state: fleet.StateUnreachable,
		want:  []due{{recovery, lifecycle.NotWanted, 0, "metal cannot restart it: restart it yourself"}},
	},
	{
		name: "it is off while it is switched off and on", now: 62,
		steps: with(up, allLevers, wantOperation(59, 1, fleet.OperationPowerCycle), operating(59, 1, 0, 0), offAt(60)),
		state: fleet.StateInstalled,
	},
	{
		name: "an installed system that a person switched off", now: 90,
		steps: with(up, allLevers, wantOperation(59, 1, fleet.OperationPowerOff), operating(59, 1, 59, 60), operated(60, 1, true), offAt(60)),
		state: fleet.StateOff, reason: "switched off by ada",
	},
	{
		name: "somebody is switching it on by other means", now: 90,
		steps: with(up, allLevers, wantOperation(59, 1, fleet.OperationPowerOff), operating(59, 1, 59, 60), operated(60, 1, true), offAt(60),
			provided(70, fleet.ProviderStatusPowering)),
		state: fleet.StateOff, reason: "switched off by ada",
	},
	{
		name: "somebody has switched it on by other means", now: 90,
		steps: with(up, allLevers, wantOperation(59, 1, fleet.OperationPowerOff), operating(59, 1, 59, 60), operated(60, 1, true), offAt(60),
			provided(70, fleet.ProviderStatusActive)),
		state: fleet.StateInstalled,
	},
	{
		name: "it has lived since, and is off again: nobody has switched it off", now: 150,
		steps: with(watched, wantOperation(59, 1, fleet.OperationPowerOff), operating(59, 1, 59, 60), operated(60, 1, true),
			probed(80, 0, 1), offAt(90)),
		state: fleet.StateUnreachable, reason: "and nobody has switched it off",
	},
	{
		name: "an agent has spoken since: it is repaired", now: 150,
		steps: with(broken, allLevers, wantOperation(9, 1, fleet.OperationPowerOff), operating(9, 1, 9, 10), operated(10, 1, true),
			started(12, 2), seen(13, 80, 2), offAt(90)),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 100, "metal switches it off and on"}},
	},
	{
		name: "what is heard while it shuts down is no sign that it is on", now: 150,
		steps: with(watched, wantOperation(59, 1, fleet.OperationPowerOff), operating(59, 1, 59, 60), operated(60, 1, true),
			probed(61, 0, 1), offAt(60)),
		state: fleet.StateOff, reason: "switched off by ada",
	},
	{
		name: "the policy did not give it back, because it was off instead of given up", now: 150,
		steps: with(up, allLevers, wantOperation(59, 1, fleet.OperationReplace), operated(60, 1, false), offAt(60), func(r *fleet.Record) {
			r.Operation.Actor = fleet.ActorPolicy
		}),
		state: fleet.StateUnreachable, reason: "and nobody has switched it off",
	},
	{
		name: "it goes off after the power-off was given up, which its provider may have heard of", now: 150,
		steps: with(broken, allLevers, wantOperation(4, 1, fleet.OperationPowerOff), operating(4, 1, 0, 0), operated(64, 1, false), offAt(100)),
		state: fleet.StateOff, reason: "switched off after all by the power-off that ada asked for, which had come to nothing: new firmware",
	},
	{
		name: "or that it accepted, when the host shuts down slowly", now: 150,
		steps: with(broken, allLevers, wantOperation(4, 1, fleet.OperationPowerOff), operating(4, 1, 4, 19), operated(19, 1, false), seen(3, 40, 1), offAt(40)),
		state: fleet.StateOff,
	},
	{
		name: "what has no agent goes off for it soon, or not for it", now: 2000,
		steps: with(up, allLevers, wantOperation(61, 1, fleet.OperationPowerOff), operating(61, 1, 0, 0), operated(122, 1, false), offAt(1000)),
		state: fleet.StateUnreachable, reason: "nobody has switched it off",
	},
	{
		name: "no call was heard: it is repaired", now: 150,
		steps: with(broken, allLevers, wantOperation(4, 1, fleet.OperationPowerOff), operated(64, 1, false), offAt(100)),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 23, "metal switches it off and on"}},
	},
	{
		name: "it was heard for long after that: it is repaired", now: 250,
		steps: with(broken, allLevers, wantOperation(4, 1, fleet.OperationPowerOff), operating(4, 1, 0, 0), operated(64, 1, false), seen(3, 125, 1), offAt(130)),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 145, "metal switches it off and on"}},
	},
	{
		name: "recovery has restarted it since, and left it off", now: 250,
		steps: with(broken, allLevers, wantOperation(4, 1, fleet.OperationPowerOff), operating(4, 1, 0, 0), operated(64, 1, false), offAt(130),
			repair(129, fleet.RungPowerCycle, nil)),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 139, "metal switches it off and on"}},
	},
	{
		name: "it is on its way off: that is not off", now: 60.5,
		steps: with(known, wantOperation(59, 1, fleet.OperationPowerOff), operating(59, 1, 59, 60), provided(59.5, fleet.ProviderStatusPowering)),
		state: fleet.StateOff,
		want:  []due{{operation, lifecycle.Later, 61, "waiting for the provider to say that it is off"}},
	},
	{
		name: "it stays on its way", now: 90, steps: with(up, provided(60, fleet.ProviderStatusPowering), allLevers),
		state: fleet.StateUnreachable, reason: "metal says that it is on its way on or off (since 2026-11-21 01:00:00 UTC)",
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
		want:  []due{{operation, lifecycle.Due, 2, "the policy has it replaced"}},
	},
	{
		name: "no policy replaces it: a person has to", now: 5, steps: []step{provided(1, fleet.ProviderStatusFailed), allLevers},
		state: fleet.StateFailed,
		want: []due{
			{operation, lifecycle.NotWanted, 0, "nothing"}, {agentStart, lifecycle.NotWanted, 0, "`ironherd machine replace m-1 --reason WHY` gives it back"},
		},
	},
	{
		name: "nor can its provider be asked to take it back", now: 5, steps: []step{provided(1, fleet.ProviderStatusFailed)},
		state: fleet.StateFailed, reason: "metal cannot be asked to take it back",
		want: []due{{agentStart, lifecycle.NotWanted, 0, "`ironherd machine forget m-1 --reason WHY`"}},
	},
	{
		name: "during a maintenance nothing touches the host", now: 13, steps: with(asked, maintenance(4, 60, false)),
		state: fleet.StateMaintenance,
		want: []due{
			{install, lifecycle.Later, 60, "maintenance by ada until 2026-11-21 01:00:00 UTC: a new fan"},
			{agentStart, lifecycle.Later, 70, "silent for 10m0s"},
			{operation, lifecycle.Later, 60, "the maintenance by ada ends"},
		},
	},
	{
		name: "a maintenance without an end", now: 500, steps: with(asked, maintenance(4, 0, false)),
		state: fleet.StateMaintenance,
		want:  []due{{install, lifecycle.Waiting, 0, "`ironherd machine maintenance end m-1 --reason WHY`"}},
	},
	{
		name: "silence counts from the end of a maintenance", now: 65, steps: with(known, maintenance(4, 60, true)),
		state: fleet.StateStarted, reason: "waiting for a heartbeat: the agent was not heard since 2026-11-21 00:03:00 UTC, and its silence counts from 2026-11-21 01:00:00 UTC on",
		want: []due{{agentStart, lifecycle.Later, 70, "silent"}, {operation, lifecycle.NotWanted, 0, "nothing"}},
	},
	{
		name: "after a maintenance that was shorter than a silence the agent is taken to speak on", now: 14, steps: with(known, maintenance(4, 12.9, true)),
		state: fleet.StateAvailable, reason: "the agent speaks",
		want: []due{{agentStart, lifecycle.Later, 22.9, "silent"}},
	},
	{
		name: "an agent that is heard after a maintenance speaks", now: 65, steps: with(known, maintenance(4, 60, true), seen(3, 61, 1)),
		state: fleet.StateAvailable, reason: "the agent speaks",
		want: []due{{agentStart, lifecycle.Later, 71, "silent"}},
	},
	{
		name: "nothing is installed on a machine that was silent before a maintenance until it is heard", now: 65, steps: with(asked, maintenance(4, 60, true)),
		state: fleet.StateStarted, reason: "was not heard since",
		want: []due{{install, lifecycle.Due, 3, "handed to the agent with its next heartbeat: the agent was not heard since 2026-11-21 00:03:00 UTC"}},
	},
	{
		name: "before a maintenance has ended, nothing is said of what counts after it", now: 5, steps: with(asked, maintenance(4, 600, false)),
		state: fleet.StateMaintenance,
		want:  []due{{install, lifecycle.Later, 600, "handed to the agent with its next heartbeat; maintenance by ada"}},
	},
	{
		name: "a maintenance that will have ended, by a clock that was set back, makes no agent silent", now: 14, steps: with(known, maintenance(4, 60, true)),
		state: fleet.StateAvailable,
	},
	{
		name: "a machine that was silent when a person restarted it is not heard yet", now: 605,
		steps: with(known, allLevers, wantOperation(600, 1, fleet.OperationReboot), operating(601, 1, 602, 0), operated(603, 1, true)),
		state: fleet.StateStarted, reason: "was not heard since 2026-11-21 00:03:00 UTC, and its silence counts from 2026-11-21 10:02:00 UTC on",
		want: []due{{agentStart, lifecycle.Due, 603, "the machine was restarted"}},
	},
	{
		name: "an install that was called off before anybody had it", steps: with(reinstall, cancelled(21, 2)), now: 22,
		state: fleet.StateInstalled,
		want:  []due{{install, lifecycle.NotWanted, 0, "called off by ada: the wrong image"}, {agentStart, lifecycle.NotWanted, 0, "no agent"}},
	},
	{
		name: "an install that is called off while it runs", steps: with(underWay, cancelled(5, 1)), now: 6,
		state: fleet.StateInstalling,
		want:  []due{{install, lifecycle.Later, 24, "the agent is told with its next heartbeat"}},
	},
	{
		name: "an install that was called off too late: its system came up, and nobody reported it", now: 60,
		steps: with(underWay, cancelled(5, 1), installed(9, 1)),
		state: fleet.StateInstalled,
		want:  []due{{install, lifecycle.NotWanted, 0, "installed (install generation 1)"}},
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
		name: "an earlier attempt may have written, which the report of the newest one says, too", now: 8,
		steps: with(underWay, seen(3, 7, 1), attempt(5, 1, 2), cancelled(5, 1), report(6, 1, 2, false), wrote(fleet.DiskUnknown)),
		state: fleet.StateAvailable, reason: "what the disk holds is undefined",
	},
	{
		name: "a reinstall that was called off when its agent was started: in memory it gives the machine back", now: 25,
		steps: with(reinstall2, cancelled(24, 2), seenBoot("boot-9"), allLevers),
		state: returning, reason: "install generation 1 comes back: the agent in memory is told to restart the machine into it; " +
			"if it stays away, a person can restart the machine (`ironherd machine reboot m-1 --reason WHY`)",
		want: []due{
			{agentStart, lifecycle.Due, 24, "the agent is taken off the machine"},
			{install, lifecycle.NotWanted, 0, "called off by ada"},
			{recovery, lifecycle.NotWanted, 0, "is left alone"},
			{probe, lifecycle.NotWanted, 0, "not back yet"},
		},
	},
	{
		name: "its agent in memory spoke just now: the host is not asked before it can have gone", now: 25,
		steps: with(reinstall2, cancelled(24, 2), seen(23, 24.9, 2), seenBoot("boot-9")),
		state: returning, want: []due{{agentStart, lifecycle.Later, 25.9, "when the agent in memory has gone"}},
	},
	{
		name: "in place it is taken off", now: 25, steps: with(reinstall2, cancelled(24, 2), seenBoot("boot-1")),
		state: returning, reason: "install generation 1 comes back: the agent is taken off the machine",
		want: []due{{agentStart, lifecycle.Due, 24, "taken off"}, {recovery, lifecycle.NotWanted, 0, "is left alone"}},
	},
	{
		name: "it never spoke, and nothing is repaired on a disk that holds what runs", now: 300,
		steps: with(reinstall, allLevers, started(22, 2), cancelled(24, 2), backoff(agentStart, 301, "dial: connection refused")),
		state: returning, reason: "in backoff after a failure: dial: connection refused",
		want: []due{{agentStart, lifecycle.Later, 301, "dial"}, {recovery, lifecycle.NotWanted, 0, "`ironherd machine reboot m-1 --reason WHY`"}},
	},
	{
		name: "a reinstall that was called off at its agent, which wrote nothing", now: 30,
		steps: with(reinstall2, seenBoot("boot-1"), attempt(24, 2, 1), cancelled(25, 2), report(26, 2, 1, false)),
		state: returning, want: []due{{agentStart, lifecycle.Due, 26, "taken off"}, {recovery, lifecycle.NotWanted, 0, "is left alone"}},
	},
	{
		name: "after attempts that wrote nothing", now: 30,
		steps: with(reinstall2, attempt(24, 2, 5), cancelled(25, 2), report(26, 2, 5, false)), state: returning,
	},
	{
		name: "the agent has not said yet what it wrote", now: 26, steps: with(reinstall2, attempt(24, 2, 1), cancelled(25, 2)),
		state: fleet.StateInstalling,
	},
	{
		name: "it has written", now: 27,
		steps: with(reinstall2, seen(23, 26.5, 2), hardware(23), attempt(24, 2, 1), cancelled(25, 2), report(26, 2, 1, false), wrote("/dev/sda")),
		state: fleet.StateAvailable, reason: "what the disk holds is undefined",
	},
	{
		name: "the one before it has written: nothing says that the installed system runs", now: 32,
		steps: with(reinstall2, seen(23, 31.5, 2), hardware(23), attempt(24, 2, 1), report(26, 2, 1, false), wrote("/dev/sda"),
			wantInstall(30, 3), cancelled(31, 3)),
		state: fleet.StateAvailable, reason: "what the disk holds is undefined",
	},
	{
		name: "recovery had the machine reinstalled by its provider before", now: 32,
		steps: with(reinstall2, seen(23, 31.5, 2), hardware(23), erased(25), wantInstall(30, 3), cancelled(31, 3)),
		state: fleet.StateAvailable, reason: "what the disk holds is undefined",
	},
	{
		name: "it was seen to be back", now: 32,
		steps: with(reinstall2, attempt(24, 2, 1), cancelled(25, 2), report(26, 2, 1, false), installed(31, 1)),
		state: fleet.StateInstalled, want: []due{{agentStart, lifecycle.NotWanted, 0, "needs no agent"}},
	},
	{
		name: "after it was back, another reinstall needs an agent", now: 42,
		steps: with(reinstall2, attempt(24, 2, 1), cancelled(25, 2), report(26, 2, 1, false), installed(31, 1), wantInstall(41, 3)),
		state: fleet.StateProvided, want: []due{{agentStart, lifecycle.Due, 41, "needs an agent"}, {install, lifecycle.Waiting, 0, "agent"}},
	},
	{
		name: "a person is given the machine first", now: 32,
		steps: with(reinstall2, cancelled(24, 2), maintenance(25, 0, false)), state: fleet.StateMaintenance,
		want: []due{{agentStart, lifecycle.Waiting, 0, "maintenance by ada"}},
	},
}
