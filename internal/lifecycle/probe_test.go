package lifecycle_test

import (
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

var probes = []scenario{
	{
		name: "the unit calls in: nobody asks", steps: written, now: 6,
		state: fleet.StateBooting,
		want:  []due{{probe, lifecycle.NotWanted, 0, "no probe was asked for"}},
	},
	{
		name: "a probe is wanted when the disk is written", steps: with(underWay, seenUp(true)), now: 5,
		state: fleet.StateInstalling,
		want:  []due{{probe, lifecycle.Later, 13, "when the agent has been silent for 10m0s, the system that its install may have left is asked by SSH"}},
	},
	{
		name: "the agent is silent in the middle of an install: its system may run", steps: with(underWay, seenUp(true)), now: 14,
		state: fleet.StateSilent,
		want: []due{
			{probe, lifecycle.Due, 13, "when the agent has been silent for 10m0s"},
			{agentStart, lifecycle.Due, 13, "it is started again"},
		},
	},
	{
		name: "nobody has answered for the install that may have been written", steps: with(underWay, seenUp(true), probed(13.5, 13.5, 1)), now: 13.6,
		state: fleet.StateSilent,
		want:  []due{{probe, lifecycle.Later, 13.5 + 1.0/6, "is asked by SSH"}},
	},
	{
		name: "the attempt was given up, and nobody knows how it ended", now: 70,
		steps: with(underWay, seenUp(true), func(r *fleet.Record) {
			report(64, 1, 1, false)(r)
			r.InstallReport.Disk = fleet.DiskUnknown
		}),
		state: fleet.StateSilent,
		want:  []due{{probe, lifecycle.Due, 13, "is asked by SSH"}},
	},
	{
		name: "the install has failed, and its agent is silent", now: 70,
		steps: with(underWay, seenUp(true), report(5, 1, 1, false)),
		state: fleet.StateSilent,
		want:  []due{{probe, lifecycle.Waiting, 0, "waiting for the disk to be written"}},
	},
	{
		name: "what answers HTTP may be the old system", now: 14,
		steps: with(underWay, func(r *fleet.Record) {
			r.InstallRequest.SeenUp = fleet.SeenUp{By: fleet.SeenByHTTP, URL: "http://{address}/"}
		}),
		state: fleet.StateSilent,
		want:  []due{{probe, lifecycle.Waiting, 0, "waiting for the disk to be written"}},
	},
	{
		name: "the host of a list that is given back while its system boots is asked first whether that is up", now: 8,
		steps: with(written, seenUp(false), levers(fleet.LeverRelease, fleet.LeverClean), wantOperation(7, 1, fleet.OperationRelease), probed(7.9, 6, 1)),
		state: fleet.StateReleasing,
		want: []due{
			{probe, lifecycle.Later, 7.9 + 1.0/6, "is asked by SSH whether it is up"},
			{operation, lifecycle.Later, 20, "release was asked for by ada: new firmware; it waits for the installed system to answer SSH, until then at most"},
			{recovery, lifecycle.NotWanted, 0, "release, asked for by ada"},
		},
	},
	{
		name: "so it is where the host was to be given back while its agent wrote", now: 8,
		steps: with(written, seenUp(false), levers(fleet.LeverRelease, fleet.LeverClean), wantOperation(4, 1, fleet.OperationRelease), operating(4.1, 1, 0, 0), probed(7.9, 6, 1)),
		state: fleet.StateReleasing,
		want: []due{
			{probe, lifecycle.Later, 7.9 + 1.0/6, "is asked by SSH whether it is up"},
			{operation, lifecycle.Later, 20, "it waits for the installed system to answer SSH"},
		},
	},
	{
		name: "it does not come up in its time: it is given back, and asked still", now: 21,
		steps: with(written, seenUp(false), levers(fleet.LeverRelease, fleet.LeverClean), wantOperation(7, 1, fleet.OperationRelease), probed(20.9, 6, 1)),
		state: fleet.StateReleasing,
		want: []due{
			{probe, lifecycle.Later, 20.9 + 1.0/6, "is asked by SSH whether it is up"},
			{operation, lifecycle.Due, 7, "release was asked for by ada: new firmware"},
			{recovery, lifecycle.NotWanted, 0, "release, asked for by ada"},
		},
	},
	{
		name: "it is up: the host is given back at once", now: 9,
		steps: with(written, seenUp(false), levers(fleet.LeverRelease, fleet.LeverClean), wantOperation(7, 1, fleet.OperationRelease), installed(8.5, 1)),
		state: fleet.StateReleasing,
		want:  []due{{probe, lifecycle.NotWanted, 0, "release, asked for by ada"}, {operation, lifecycle.Due, 7, "release was asked for by ada"}},
	},
	{
		name: "what a provider takes back is not waited for", now: 8,
		steps: with(written, seenUp(false), allLevers, wantOperation(7, 1, fleet.OperationRelease)),
		state: fleet.StateReleasing,
		want:  []due{{probe, lifecycle.NotWanted, 0, "release, asked for by ada"}, {operation, lifecycle.Due, 7, "release was asked for by ada"}},
	},
	{
		name: "nor is a host in quarantine", now: 8,
		steps: with(written, seenUp(false), levers(fleet.LeverRelease, fleet.LeverClean), wantOperation(7, 1, fleet.OperationRelease), quarantine(6)),
		state: fleet.StateQuarantined,
		want:  []due{{probe, lifecycle.NotWanted, 0, "quarantined by ada"}, {operation, lifecycle.Due, 7, "release was asked for by ada"}},
	},
	{
		name: "an install that was called off before it began is waited for by nobody", steps: with(asked, seenUp(true), cancelled(6, 1)), now: 7,
		state: fleet.StateAvailable,
		want:  []due{{probe, lifecycle.NotWanted, 0, "the install was called off"}},
	},
	{
		name: "an install that was called off is not looked for", steps: with(underWay, seenUp(true), cancelled(6, 1)), now: 14,
		state: fleet.StateSilent,
		want:  []due{{probe, lifecycle.Waiting, 0, "waiting for the disk to be written"}},
	},
	{
		name: "the disk is written: the system is asked at once", steps: unseen, now: 5,
		state: fleet.StateBooting, reason: "waiting for the installed system to answer SSH",
		want: []due{
			{probe, lifecycle.Due, 5, "is asked by SSH whether it is up"},
			{recovery, lifecycle.Waiting, 0, "the probes show"},
		},
	},
	{
		name: "it is asked again and again", steps: with(unseen, probed(6, 6, 1)), now: 6,
		state: fleet.StateBooting, reason: "to answer SSH: connection refused",
		want: []due{{probe, lifecycle.Later, 6 + 1.0/6, "is asked by SSH"}},
	},
	{
		name: "what an older install was found to be counts for nothing", steps: with(unseen, probed(40, 6, 2)), now: 40,
		state: fleet.StateBooting,
		want:  []due{{probe, lifecycle.Due, 5, "is asked by SSH"}, {recovery, lifecycle.Waiting, 0, "the probes show"}},
	},
	{
		name: "nobody asked for an hour: nothing is concluded", steps: with(unseen, probed(6, 6, 1)), now: 66,
		state: fleet.StateBooting,
		want:  []due{{probe, lifecycle.Due, 6 + 1.0/6, "is asked"}, {recovery, lifecycle.Waiting, 0, "the probes show"}},
	},
	{
		name: "it has not answered in its time: it is where a unit goes that never calls", steps: with(unseen, probed(20, 6, 1)), now: 20,
		state: fleet.StateSilent, reason: "has not answered 15m0s after the install",
		want: []due{
			{probe, lifecycle.Later, 20 + 1.0/6, "is asked"},
			{recovery, lifecycle.Later, 30, "metal reboots it"},
		},
	},
	{
		name: "it is asked again after the reboot, before the next step", now: 40,
		steps: with(unseen, probed(25, 6, 1), repair(21, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 1})),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Waiting, 0, "was tried at 2026-11-21 00:21:00 UTC; the probes show whether the installed system comes up"}},
	},
	{
		name: "the reboot has not helped", now: 40,
		steps: with(unseen, probed(31, 6, 1), repair(21, fleet.RungReboot, map[fleet.Rung]int{fleet.RungReboot: 2})),
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Due, 31, "metal switches it off and on"}},
	},
	{
		name: "a silence of the listener is not that of the system", steps: with(unseen, probed(20, 6, 1)), now: 20,
		env:   func(e *fleet.Environment) { e.ListenerUpSince = time.Time{} },
		state: fleet.StateSilent,
	},
	{
		name: "installed, and not watched", steps: with(up, seenUp(false), probed(6, 0, 1)), now: 90,
		state: fleet.StateInstalled,
		want:  []due{{probe, lifecycle.NotWanted, 0, "is not watched"}},
	},
	{
		name: "watched", steps: with(watched, probed(10, 0, 1)), now: 10,
		state: fleet.StateInstalled, reason: "it answers SSH",
		want: []due{{probe, lifecycle.Later, 11, "is watched by SSH"}, {recovery, lifecycle.NotWanted, 0, "left alone"}},
	},
	{
		name: "it does not answer, for less than policy says", steps: with(watched, probed(14.9, 10, 1)), now: 60,
		state: fleet.StateInstalled, reason: "it has not answered SSH since 2026-11-21 00:10:00 UTC: connection refused",
		want: []due{{probe, lifecycle.Due, 15.9, "is watched"}},
	},
	{
		name: "unreachable, and left alone", steps: with(watched, probed(15, 10, 1)), now: 15,
		state: fleet.StateUnreachable, reason: "connection refused",
		want: []due{
			{probe, lifecycle.Later, 16, "is watched"},
			{recovery, lifecycle.NotWanted, 0, "is left alone; a person can restart the machine"},
			{agentStart, lifecycle.NotWanted, 0, "an operating system is installed"},
			{operation, lifecycle.NotWanted, 0, "nothing was asked for"},
		},
	},
	{
		name: "it answered, and cannot be asked now", steps: with(watched, probed(10, 0, 1), unasked(11, 14)), now: 13,
		state:  fleet.StateInstalled,
		reason: "it last answered SSH at 2026-11-21 00:10:00 UTC; it cannot be asked since 2026-11-21 00:11:00 UTC: the jump host is down",
		want:   []due{{probe, lifecycle.Later, 14, "in backoff after 3 failures"}},
	},
	{
		name: "it was never asked, and cannot be", steps: with(watched, unasked(11, 14)), now: 13,
		state: fleet.StateInstalled, reason: "; it cannot be asked since 2026-11-21 00:11:00 UTC: the jump host is down",
	},
	{
		name: "it did not answer, and cannot be asked now", steps: with(watched, probed(11, 10, 1), unasked(12, 60)), now: 50,
		state:  fleet.StateInstalled,
		reason: "it has not answered SSH since 2026-11-21 00:10:00 UTC: connection refused; it cannot be asked since 2026-11-21 00:12:00 UTC: ",
	},
	{
		name: "its turn did not come", steps: with(watched, probed(10, 0, 1), backoff(probe, 14, "busy")), now: 13,
		state: fleet.StateInstalled, reason: "it answers SSH",
	},
	{
		name: "its disk is written, and it cannot be asked", steps: with(unseen, unasked(5, 10)), now: 6,
		state: fleet.StateBooting, reason: "to answer SSH: it cannot be asked since 2026-11-21 00:05:00 UTC: the jump host is down",
	},
	{
		name: "its unit calls: nobody asks until a call is overdue", steps: with(watched, byUnit, probed(10, 0, 1)), now: 10,
		state: fleet.StateInstalled, reason: "its unit calls",
		want: []due{{probe, lifecycle.Later, 12, "is watched by calls of its unit"}, {recovery, lifecycle.NotWanted, 0, "left alone"}},
	},
	{
		name: "its unit has not called yet since it said that it is up", steps: with(watched, byUnit), now: 7,
		state: fleet.StateInstalled,
		want:  []due{{probe, lifecycle.Later, 8, "is watched by calls of its unit"}},
	},
	{
		name: "no call is missed while a listener has no room", steps: with(watched, byUnit, probed(10, 0, 1)), now: 60, env: full(11, 61),
		state: fleet.StateInstalled, reason: "its unit calls",
		want: []due{{probe, lifecycle.Later, 61, "is watched by calls of its unit; not before then"}},
	},
	{
		name: "calls are missed only while somebody listens", steps: with(watched, byUnit, probed(10, 0, 1)), now: 60,
		env:   func(e *fleet.Environment) { e.ListenerUpSince = at(59.5) },
		state: fleet.StateInstalled, reason: "its unit calls",
		want: []due{{probe, lifecycle.Later, 61.5, "is watched by calls of its unit"}},
	},
	{
		name: "no call is missed before the interval that its unit was told: the policy had a longer one", steps: with(watched, byUnit, probed(10, 0, 1)), now: 60,
		env:   watchedBefore(20, 30),
		state: fleet.StateInstalled, reason: "its unit calls",
		want: []due{{probe, lifecycle.Later, 70, "is watched by calls of its unit"}},
	},
	{
		name:  "restarted since the policy has another interval, its unit learns it: it calls as it boots",
		steps: with(watched, byUnit, probed(10, 0, 1), wantOperation(59, 1, fleet.OperationReboot), operating(59, 1, 59, 60), operated(60, 1, true)), now: 60,
		env:   watchedBefore(20, 1440),
		state: fleet.StateInstalled, reason: "its unit calls",
		want: []due{{probe, lifecycle.Later, 61, "is watched by calls of its unit"}},
	},
	{
		name:  "restarted while the policy had a longer interval, its unit may have been told that",
		steps: with(watched, byUnit, probed(10, 0, 1), wantOperation(14, 1, fleet.OperationReboot), operating(14, 1, 14, 15), operated(15, 1, true)), now: 61,
		env:   watchedBefore(20, 30),
		state: fleet.StateInstalled, reason: "its unit calls",
		want: []due{{probe, lifecycle.Later, 74, "is watched by calls of its unit"}},
	},
	{
		name: "its unit has called since the policy has another interval", steps: with(watched, byUnit, probed(21, 0, 1)), now: 21,
		env:   watchedBefore(20, 30),
		state: fleet.StateInstalled, reason: "its unit calls",
		want: []due{{probe, lifecycle.Later, 23, "is watched by calls of its unit"}},
	},
	{
		name: "a call is missed: it is looked for again", steps: with(watched, byUnit, probed(12, 12, 1)), now: 12,
		state: fleet.StateInstalled, reason: "its unit has not called since 2026-11-21 00:12:00 UTC",
		want: []due{{probe, lifecycle.Later, 14, "is watched by calls of its unit"}},
	},
	{
		name: "its unit does not call: unreachable, and left alone", steps: with(watched, byUnit, probed(17, 12, 1)), now: 17,
		state: fleet.StateUnreachable, reason: "its unit has not called since",
		want: []due{{recovery, lifecycle.NotWanted, 0, "is left alone; a person can restart the machine (`ironherd machine reboot m-1 --reason WHY`)"}},
	},
	{
		name: "switched on, it has as long to answer", steps: with(watched, probed(18, 10, 1), provided(15, fleet.ProviderStatusActive)), now: 18,
		state: fleet.StateInstalled, reason: "it has not answered SSH since",
	},
	{
		name: "switched on, and unreachable still", steps: with(watched, probed(20, 10, 1), provided(15, fleet.ProviderStatusActive)), now: 20,
		state: fleet.StateUnreachable, reason: "it has not answered SSH since",
	},
	{
		name: "unreachable, and its provider can only switch it off and on", steps: with(watched, levers(fleet.LeverPower), probed(15, 10, 1)), now: 15,
		state: fleet.StateUnreachable, reason: "connection refused",
		want: []due{{recovery, lifecycle.NotWanted, 0, "a person can restart the machine (`ironherd machine power cycle m-1 --reason WHY`)"}},
	},
	{
		name: "unreachable, and its provider cannot restart it", steps: with(watched, levers(fleet.LeverRelease), probed(15, 10, 1)), now: 15,
		state: fleet.StateUnreachable, reason: "connection refused",
		want: []due{{recovery, lifecycle.NotWanted, 0, "cannot restart it: restart it yourself"}},
	},
	{
		name: "maintenance makes its silence expected", steps: with(watched, maintenance(9, 20, true), probed(24, 10, 1)), now: 24,
		state: fleet.StateInstalled,
	},
	{
		name: "during maintenance it is not asked", steps: with(watched, maintenance(9, 0, false), probed(9, 0, 1)), now: 24,
		state: fleet.StateMaintenance,
		want:  []due{{probe, lifecycle.Waiting, 0, "maintenance by ada"}},
	},
	{
		name: "after a restore nothing is asked", now: 24, // rule 11
		steps: with(watched, probed(9, 0, 1)),
		env:   func(e *fleet.Environment) { e.Restored = "counter 7 beside the file, 5 in it" },
		state: fleet.StateInstalled,
		want:  []due{{probe, lifecycle.Waiting, 0, "accept-restore"}},
	},
	{
		name: "a reinstall that was called off in time: what runs is watched on", now: 24,
		steps: with(watched, wantInstall(20, 2), cancelled(21, 2), probed(23.5, 0, 1)),
		state: fleet.StateInstalled,
		want:  []due{{probe, lifecycle.Later, 24.5, "is watched by SSH"}},
	},
	{
		name: "switched off: nobody asks", now: 24,
		steps: with(watched, probed(9, 0, 1), wantOperation(10, 1, fleet.OperationPowerOff), operating(10, 1, 11, 0), operated(12, 1, true)),
		state: fleet.StateOff,
		want:  []due{{probe, lifecycle.NotWanted, 0, "switched off by ada"}},
	},
}
