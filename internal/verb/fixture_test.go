package verb_test

import (
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/verb"
)

// Everything happens on one morning, and is judged at half past midnight.
func at(minutes int) time.Time {
	return time.Date(2026, 11, 21, 0, minutes, 0, 0, time.UTC)
}

func ptr[T any](v T) *T { return &v }

// step adds something to a case.
type step func(*verb.Case)

// judging is a request of bob about a machine of a provider that can do everything.
func judging(v fleet.Verb, steps ...step) verb.Case {
	x := verb.Case{
		Request: verb.Request{Verb: v, Actor: "bob", Reason: "why not"}, State: fleet.StateAvailable, Now: at(30),
		Env: fleet.Environment{Policy: fleet.DefaultPolicy(), ListenerUpSince: at(-60), PromisedInterval: 30 * time.Second},
		Record: fleet.Record{
			Machine:  fleet.Machine{ID: "m-1", Provider: "metal", ProviderID: "dev-1", CreatedAt: at(0)},
			Levers:   []fleet.Lever{fleet.LeverReboot, fleet.LeverPower, fleet.LeverReinstall, fleet.LeverRelease},
			Provided: &fleet.Provided{At: at(1), CreatedAt: at(1), Status: fleet.ProviderStatusActive, ActiveAt: ptr(at(1)), Hostname: "web-1"},
		},
	}
	if v == fleet.VerbReinstall {
		x.Install = &fleet.InstallRequest{Image: image}
	}
	for _, s := range steps {
		s(&x)
	}
	return x
}

var image = fleet.Image{URL: "https://images.example/a.img"}

func levers(all ...fleet.Lever) step { return func(x *verb.Case) { x.Record.Levers = all } }

// listed makes the machine a host of a list.
func listed(x *verb.Case) { x.Record.Levers = append(x.Record.Levers, fleet.LeverClean) }

func by(actor, reason string) step { return func(x *verb.Case) { x.Actor, x.Reason = actor, reason } }

func until(minute int) step { return func(x *verb.Case) { x.Until = ptr(at(minute)) } }

func erasing(x *verb.Case) { x.Install.RootDisk.Erase = true }

func in(s fleet.State) step { return func(x *verb.Case) { x.State = s } }

func provided(s fleet.ProviderStatus) step {
	return func(x *verb.Case) { x.Record.Provided.Status = s }
}

func capacity(x *verb.Case) { x.Record.Provided.Capacity = "rack-7" }

// notCreated is a machine that its provider was asked for so often.
func notCreated(calls int) step {
	return func(x *verb.Case) {
		x.Record.Provided, x.Record.ProviderID = nil, ""
		x.Record.Intent = &fleet.Intent{Machine: "m-1", Provider: "metal", Capacity: "rack-7", Calls: calls}
	}
}

func asked(o fleet.Operation) step {
	return func(x *verb.Case) {
		x.Record.Operation = &fleet.OperationRequest{Number: 1, Operation: o, At: at(20), Actor: "ada", Reason: "new firmware"}
	}
}

// byPolicy makes the policy ask for the operation.
func byPolicy(x *verb.Case) { x.Record.Operation.Actor = fleet.ActorPolicy }

func begun(x *verb.Case) {
	x.Record.OperationAttempt = &fleet.OperationAttempt{Number: 1, Attempt: 1, At: at(21), BootID: "boot-1"}
}

func accepted(x *verb.Case) {
	begun(x)
	x.Record.OperationAttempt.AcceptedAt = ptr(at(22))
}

func ended(x *verb.Case) {
	x.Record.OperationReport = &fleet.OperationReport{Number: 1, At: at(23), OK: true, Detail: "seen"}
}

func wanted(generation fleet.InstallGeneration) step {
	return func(x *verb.Case) {
		x.Record.InstallRequest = &fleet.InstallRequest{Generation: generation, At: at(4), Actor: "ada"}
	}
}

func handedOut(x *verb.Case) {
	wanted(1)(x)
	x.Record.InstallAttempt = &fleet.InstallAttempt{Generation: 1, Attempt: 1, At: at(5)}
}

func failed(disk string) step {
	return func(x *verb.Case) {
		handedOut(x)
		x.Record.InstallReport = &fleet.InstallReport{Generation: 1, Attempt: 1, At: at(6), Error: "digest mismatch", Disk: disk}
	}
}

func written(x *verb.Case) {
	handedOut(x)
	x.Record.InstallReport = &fleet.InstallReport{Generation: 1, Attempt: 1, At: at(6), OK: true, Disk: "/dev/sda"}
}

func up(x *verb.Case) {
	written(x)
	x.Record.Installed = &fleet.Installed{Generation: 1, Attempt: 1, At: at(7)}
}

// marked is a machine of which a person has said that an operating system runs there.
func marked(x *verb.Case) { x.Record.Installed = &fleet.Installed{Generation: 1, At: at(7)} }

func erased(x *verb.Case) { x.Record.Installed.ErasedAt = ptr(at(8)) }

// speaking is a machine whose agent is heard.
func speaking(x *verb.Case) {
	x.Record.TakeoverGeneration = 1
	x.Record.AgentStarted = &fleet.AgentStarted{At: at(2), TakeoverGeneration: 1, PublicKey: make([]byte, 32), BootID: "boot-1"}
	x.Record.AgentSeen = &fleet.AgentSeen{TakeoverGeneration: 1, FirstAt: at(3), LastAt: at(30), BootID: "boot-1"}
}

// starting is the start of an agent that is under way.
func starting(x *verb.Case) {
	x.Record.Holds = map[fleet.Lane]fleet.Hold{fleet.LaneHost: {Process: fleet.ProcessAgentStart}}
}

func quarantined(actor, reason string) step {
	return func(x *verb.Case) { x.Record.Quarantine = &fleet.Quarantine{At: at(10), Actor: actor, Reason: reason} }
}

// maintained is a maintenance of ada until a minute; 0: without an end.
func maintained(until int) step {
	return func(x *verb.Case) {
		x.Record.Maintenance = &fleet.Maintenance{At: at(10), Actor: "ada", Reason: "hands in it"}
		if until != 0 {
			x.Record.Maintenance.Until = ptr(at(until))
		}
	}
}

func over(x *verb.Case) { x.Record.Maintenance.Over = true }

// repairing is a step of recovery on a machine that was heard, and is not any more.
func repairing(rung fleet.Rung) step {
	return func(x *verb.Case) {
		speaking(x)
		x.Record.AgentSeen.LastAt = at(3)
		x.Record.Repair = &fleet.Repair{
			Since: at(20), Rung: rung, At: at(29), Steps: map[fleet.Rung]int{rung: 1}, TakeoverGeneration: 1, BootID: "boot-1",
		}
	}
}

func unserved(roles ...fleet.Role) step {
	return func(x *verb.Case) { x.Service.Unserved = roles }
}

func abandoned(x *verb.Case) { x.Service.Abandoned = true }

func mayServe(x *verb.Case) {
	x.Service.MayServe = fleet.Errorf(fleet.KindConflict, "an older control plane does not say")
}
