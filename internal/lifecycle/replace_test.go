package lifecycle_test

import (
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// failed has the provider give the machine up.
func failed(minute float64) step {
	return func(r *fleet.Record) { r.Provided.Status, r.Provided.At = fleet.ProviderStatusFailed, at(minute) }
}

// byPolicy makes the newest operation one that the policy has asked for.
func byPolicy(r *fleet.Record) { r.Operation.Actor = fleet.ActorPolicy }

func replaceFailed(more ...func(*fleet.Environment)) func(*fleet.Environment) {
	return func(e *fleet.Environment) {
		e.Policy.ReplaceFailed = true
		for _, m := range more {
			m(e)
		}
	}
}

var replacements = []scenario{
	{
		name: "its provider gave it up, and its agent is heard: the policy does not have it replaced", now: 91,
		steps: with(known, allLevers, seen(3, 90, 1), failed(85)), env: replaceFailed(),
		state: fleet.StateFailed, reason: "its agent is heard, so the policy does not have it replaced now; `ironherd machine replace m-1 --reason WHY` gives it back",
		want: []due{{operation, lifecycle.Later, 100, "has it replaced once nothing is heard of it: its agent is heard"}},
	},
	{
		name: "its provider gave it up, and its agent has fallen silent since", now: 101,
		steps: with(known, allLevers, seen(3, 90, 1), failed(85)), env: replaceFailed(),
		state: fleet.StateFailed, reason: "the policy has it replaced",
		want: []due{{operation, lifecycle.Due, 100, "the policy has it replaced"}},
	},
	{
		name: "its provider gave it up when its agent had been silent for long", now: 91,
		steps: with(known, allLevers, seen(3, 40, 1), failed(85)), env: replaceFailed(),
		state: fleet.StateFailed,
		want:  []due{{operation, lifecycle.Due, 86, "the policy has it replaced"}},
	},
	{
		name: "its provider gave it up, and nobody listens for its agent", now: 91,
		steps: with(known, allLevers, seen(3, 40, 1), failed(85)),
		env:   replaceFailed(func(e *fleet.Environment) { e.ListenerUpSince = at(90) }),
		state: fleet.StateFailed,
		want:  []due{{operation, lifecycle.Later, 100, "once nothing is heard of it"}},
	},
	{
		name: "its provider gave it up when its agent had just been started", now: 5,
		steps: with(agent, allLevers, failed(4)), env: replaceFailed(),
		state: fleet.StateFailed, reason: "its agent was started, and may speak yet",
		want: []due{{operation, lifecycle.Later, 32, "once nothing is heard of it"}},
	},
	{
		name: "its provider gave it up when its disk had just been written", now: 8,
		steps: with(written, allLevers, failed(7)), env: replaceFailed(),
		state: fleet.StateFailed,
		want:  []due{{operation, lifecycle.Later, 20, "its installed system may be coming up"}},
	},
	{
		name: "its provider gave it up when its system was to come up: it is asked as before", now: 8,
		steps: with(written, seenUp(false), allLevers, failed(7)), env: replaceFailed(),
		state: fleet.StateFailed,
		want:  []due{{operation, lifecycle.Later, 20, "its installed system may be coming up"}, {probe, lifecycle.Due, 5, "is asked by SSH whether it is up"}},
	},
	{
		name: "its provider gave it up, and its watched system answers: it is asked as before", now: 90,
		steps: with(watched, probed(89.5, 0, 1), failed(85)), env: replaceFailed(),
		state: fleet.StateFailed, reason: "its installed system is watched, and is not unreachable, so the policy does not have it replaced now",
		want: []due{{operation, lifecycle.Waiting, 0, "once nothing is heard of it"}, {probe, lifecycle.Later, 90.5, "is watched"}},
	},
	{
		name: "its provider gave it up, and its watched system has not answered for too short a time", now: 90,
		steps: with(watched, probed(89.5, 86, 1), failed(85)), env: replaceFailed(),
		state: fleet.StateFailed,
		want:  []due{{operation, lifecycle.Waiting, 0, "not unreachable"}, {probe, lifecycle.Later, 90.5, "is watched"}},
	},
	{
		name: "its provider gave it up, and its watched system has become unreachable", now: 92,
		steps: with(watched, probed(91.5, 86, 1), failed(85)), env: replaceFailed(),
		state: fleet.StateFailed,
		want:  []due{{operation, lifecycle.Due, 86, "the policy has it replaced"}},
	},
	{
		name: "without that policy nobody asks a watched system that was given up", now: 90,
		steps: with(watched, probed(89.5, 0, 1), failed(85)),
		state: fleet.StateFailed,
		want:  []due{{operation, lifecycle.NotWanted, 0, "nothing"}, {probe, lifecycle.NotWanted, 0, "gave the machine up"}},
	},
	{
		name: "its installed system has come up since", now: 90,
		steps: with(written, allLevers, failed(7), installed(8, 1)), env: replaceFailed(),
		state: fleet.StateFailed, reason: "its installed system has come up since",
		want: []due{{operation, lifecycle.Waiting, 0, "does not have it replaced: its installed system has come up since"}},
	},
	{
		name: "nothing is heard of an installed system that is not watched", now: 90,
		steps: with(up, allLevers, failed(85)), env: replaceFailed(),
		state: fleet.StateFailed,
		want:  []due{{operation, lifecycle.Due, 86, "the policy has it replaced"}},
	},
	{
		name: "its provider has just given it up, and a long pass may not have told yet of all that it gave up", now: 85.5,
		steps: with(up, allLevers, failed(85)), env: replaceFailed(),
		state: fleet.StateFailed,
		want:  []due{{operation, lifecycle.Later, 86, "the policy has it replaced"}},
	},
	{
		name: "nothing is replaced while recovery is stopped", now: 5,
		steps: []step{provided(1, fleet.ProviderStatusFailed), allLevers}, env: replaceFailed(hold(0)),
		state: fleet.StateFailed,
		want: []due{{
			operation, lifecycle.Waiting, 0,
			"the policy has it replaced when recovery goes on, which is stopped by ironherd (900 of 1000 machines fell silent); `ironherd recovery resume` ends that",
		}},
	},
	{
		name: "nothing is replaced until the stop of recovery ends", now: 5,
		steps: []step{provided(1, fleet.ProviderStatusFailed), allLevers}, env: replaceFailed(hold(30)),
		state: fleet.StateFailed,
		want:  []due{{operation, lifecycle.Later, 30, "not before 2026-11-21 00:30:00 UTC, because ironherd stopped recovery until then: 900 of 1000 machines fell silent"}},
	},
	{
		name: "what the policy has asked for is not wanted any more", now: 7, // rule 8
		steps: []step{provided(1, fleet.ProviderStatusFailed), allLevers, wantOperation(5, 1, fleet.OperationReplace), byPolicy},
		state: fleet.StateFailed,
		want:  []due{{operation, lifecycle.Due, 5, "which does not want it any more"}},
	},
	{
		name: "what the policy has asked for waits while the machine is heard", now: 91,
		steps: with(known, allLevers, seen(3, 90, 1), failed(85), wantOperation(86, 1, fleet.OperationReplace), byPolicy), env: replaceFailed(),
		state: fleet.StateFailed, reason: "its agent is heard",
		want: []due{{operation, lifecycle.Later, 100, "once nothing is heard of it"}},
	},
	{
		name: "what a person has asked for does not wait for that", now: 91,
		steps: with(known, allLevers, seen(3, 90, 1), failed(85), wantOperation(84, 1, fleet.OperationReplace)), env: replaceFailed(),
		state: fleet.StateFailed, reason: "replace, asked for by ada: new firmware",
		want: []due{{operation, lifecycle.Due, 84, "replace was asked for by ada"}},
	},
	{
		name: "what the provider may have heard is looked at, whatever the policy wants by now", now: 91,
		steps: with(known, allLevers, seen(3, 90, 1), failed(85), wantOperation(86, 1, fleet.OperationReplace), byPolicy, operating(87, 1, 0, 0)), env: replaceFailed(),
		state: fleet.StateFailed,
		want:  []due{{operation, lifecycle.Due, 87, "attempt 1 at replace was begun"}},
	},
}
