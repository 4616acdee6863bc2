package lifecycle_test

import (
	"net/netip"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// The instants of the specification: everything happens on one morning.
var midnight = time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)

func at(minutes float64) time.Time {
	return midnight.Add(time.Duration(minutes * float64(time.Minute)))
}

func ptr[T any](v T) *T { return &v }

// step adds one fact to a record; a case of the specification is a list of steps.
type step func(*fleet.Record)

func intent(planned float64, calls, rejected int) step {
	return func(r *fleet.Record) {
		r.Intent = &fleet.Intent{
			Machine: r.ID, Provider: r.Provider, Capacity: "rack-7", Token: "t", OpenedAt: at(0), PlannedAt: at(planned),
			Calls: calls, Rejected: rejected,
		}
	}
}

func provided(minute float64, status fleet.ProviderStatus) step {
	return func(r *fleet.Record) {
		r.Intent, r.ProviderID = nil, "dev-1"
		r.Provided = &fleet.Provided{At: at(minute), CreatedAt: at(minute), Status: status, Address: netip.MustParseAddr("192.0.2.7")}
		if status == fleet.ProviderStatusActive {
			r.Provided.ActiveAt = ptr(at(minute))
		}
	}
}

// offAt makes the provider say from then on that the machine is off.
func offAt(minute float64) step {
	return func(r *fleet.Record) { r.Provided.Status, r.Provided.At = fleet.ProviderStatusOff, at(minute) }
}

func started(minute float64, generation fleet.TakeoverGeneration) step {
	return func(r *fleet.Record) {
		r.TakeoverGeneration = generation
		r.AgentStarted = &fleet.AgentStarted{At: at(minute), TakeoverGeneration: generation, PublicKey: make([]byte, 32)}
	}
}

func seen(first, last float64, generation fleet.TakeoverGeneration) step {
	return func(r *fleet.Record) {
		r.AgentSeen = &fleet.AgentSeen{TakeoverGeneration: generation, FirstAt: at(first), LastAt: at(last), BootID: "boot-1"}
	}
}

// seenBoot is the boot under which the agent was heard; it was started under none.
func seenBoot(id string) step {
	return func(r *fleet.Record) { r.AgentStarted.BootID, r.AgentSeen.BootID = "boot-1", id }
}

func hardware(minute float64) step {
	return func(r *fleet.Record) { r.Hardware = &fleet.Hardware{FirstAt: at(minute), At: at(minute), Digest: "d"} }
}

func wantInstall(minute float64, generation fleet.InstallGeneration) step {
	return func(r *fleet.Record) {
		r.InstallRequest = &fleet.InstallRequest{Generation: generation, At: at(minute), Actor: "operator"}
	}
}

// seenUp makes the newest install be seen by SSH, and watched.
func seenUp(watch bool) step {
	return func(r *fleet.Record) {
		seen := fleet.SeenUp{By: fleet.SeenBySSH, Watch: watch}
		if r.InstallRequest != nil {
			r.InstallRequest.SeenUp = seen
		}
		if r.Installed != nil {
			r.Installed.SeenUp = seen
		}
	}
}

// byUnit makes the installed system be watched by the calls of its unit.
func byUnit(r *fleet.Record) { r.Installed.SeenUp = fleet.SeenUp{Watch: true} }

// probed is what the newest probe found, of an install that has one attempt; since 0: it was
// answered.
func probed(minute, since float64, generation fleet.InstallGeneration) step {
	return func(r *fleet.Record) {
		r.Probe = &fleet.Probe{Generation: generation, Attempt: 1, At: at(minute), AnsweredAt: at(minute), Detail: "it answers SSH"}
		if since != 0 {
			r.Probe.UnansweredSince, r.Probe.Detail = at(since), "connection refused"
		}
	}
}

func attempt(minute float64, generation fleet.InstallGeneration, n int) step {
	return func(r *fleet.Record) {
		r.InstallAttempt = &fleet.InstallAttempt{Generation: generation, Attempt: n, At: at(minute)}
	}
}

func report(minute float64, generation fleet.InstallGeneration, n int, ok bool) step {
	return func(r *fleet.Record) {
		r.InstallReport = &fleet.InstallReport{Generation: generation, Attempt: n, At: at(minute), OK: ok}
	}
}

// wrote says which disk the newest attempt wrote.
func wrote(disk string) step { return func(r *fleet.Record) { r.InstallReport.Disk = disk } }

// refused is a report that the disk holds that install already.
func refused(minute float64, generation fleet.InstallGeneration, n int, held fleet.InstallGeneration) step {
	return func(r *fleet.Record) {
		r.InstallReport = &fleet.InstallReport{
			Generation: generation, Attempt: n, At: at(minute), Error: "/dev/sda holds an install", HeldGeneration: held, HeldAttempt: 1,
		}
	}
}

// heldBefore leaves a refusal in a report, as a version does which does not know of that.
func heldBefore(r *fleet.Record) { r.InstallReport.HeldGeneration, r.InstallReport.HeldAttempt = 5, 1 }

// needsErase is a report that the disk holds what the request does not allow to be erased.
func needsErase(minute float64, generation fleet.InstallGeneration, n int) step {
	return func(r *fleet.Record) {
		r.InstallReport = &fleet.InstallReport{Generation: generation, Attempt: n, At: at(minute), Error: "/dev/sda holds a file system", NeedsErase: true}
	}
}

// notUnderstood is a report that the agent does not know all that the request asks for.
func notUnderstood(minute float64, generation fleet.InstallGeneration, n int) step {
	return func(r *fleet.Record) {
		r.InstallReport = &fleet.InstallReport{Generation: generation, Attempt: n, At: at(minute), Error: "it is older", NotUnderstood: true}
	}
}

// watchedBefore has units be told a watch interval, in minutes, until a policy with another one.
func watchedBefore(until, interval float64) func(*fleet.Environment) {
	return func(e *fleet.Environment) {
		e.WatchedBefore = append(e.WatchedBefore, fleet.WatchedBefore{Until: at(until), Interval: at(interval).Sub(at(0))})
	}
}

func installed(minute float64, generation fleet.InstallGeneration) step {
	return func(r *fleet.Record) {
		r.Installed = &fleet.Installed{Generation: generation, Attempt: 1, At: at(minute)}
	}
}

// erased is a reinstall by the provider that recovery asked for.
func erased(minute float64) step {
	return func(r *fleet.Record) {
		when := at(minute)
		r.Installed.ErasedAt = &when
	}
}

func quarantine(minute float64) step {
	return func(r *fleet.Record) {
		r.Quarantine = &fleet.Quarantine{At: at(minute), Actor: "ada", Reason: "smells of smoke"}
	}
}

func backoff(process fleet.Process, until float64, cause string) step {
	return func(r *fleet.Record) {
		r.Backoffs[process] = fleet.BackoffState{NotBefore: at(until), Interval: time.Minute, Cause: cause, Failures: 1}
		if process == fleet.ProcessAgentStart {
			b := r.Backoffs[process]
			b.Since = at(until - 1)
			r.Backoffs[process] = b
		}
	}
}

// unasked makes the probes of a machine impossible since then.
func unasked(since, until float64) step {
	return func(r *fleet.Record) {
		r.Backoffs[probe] = fleet.BackoffState{NotBefore: at(until), Interval: time.Minute, Cause: "the jump host is down", Failures: 3, Since: at(since)}
	}
}

// unanswered makes the agent starts of a machine fail because its host has answered nobody since
// then; answers because it answers, and refuses a connection or us.
// unanswered has starts of an agent get no answer, at those minutes.
func unanswered(minutes ...float64) step {
	return func(r *fleet.Record) {
		for _, m := range minutes {
			r.Backoffs[agentStart] = r.Backoffs[agentStart].Heard(fleet.AnswerNone, at(m))
		}
	}
}

func answers(a fleet.Answer) step {
	return func(r *fleet.Record) {
		b := r.Backoffs[agentStart]
		r.Backoffs[agentStart] = b.Heard(a, at(0))
	}
}

func answered(r *fleet.Record) { answers(fleet.AnswerGiven)(r) }

func held(process fleet.Process, until float64) step {
	return func(r *fleet.Record) {
		r.Holds[process.Lane()] = fleet.Hold{
			Session: "s-1", Component: "initializer", Host: "ctl", Process: process, Epoch: 3, Since: at(0), Deadline: at(until),
		}
	}
}

func levers(levers ...fleet.Lever) step { return func(r *fleet.Record) { r.Levers = levers } }

// repair is the newest step of the recovery ladder; steps is how often each was taken.
func repair(minute float64, rung fleet.Rung, steps map[fleet.Rung]int) step {
	return func(r *fleet.Record) {
		r.Repair = &fleet.Repair{Since: at(13), Rung: rung, At: at(minute), Steps: steps, BootID: "boot-1"}
	}
}

// madeUnder says under which takeover generation the newest step was taken.
func madeUnder(generation fleet.TakeoverGeneration) step {
	return func(r *fleet.Record) { r.Repair.TakeoverGeneration = generation }
}

// turnedDown is the refusal of the newest step by the provider.
func turnedDown(r *fleet.Record) { r.Repair.Refused = true }

// ended is the end of a step that has restarted nothing.
func ended(r *fleet.Record) { r.Repair.TakeoverGeneration, r.Repair.BootID = 0, "" }

// again makes the agent be heard under another boot ID.
func again(r *fleet.Record) { r.AgentSeen.BootID = "boot-2" }

func wantOperation(minute float64, number int64, o fleet.Operation) step {
	return func(r *fleet.Record) {
		r.Operation = &fleet.OperationRequest{Number: number, Operation: o, At: at(minute), Actor: "ada", Reason: "new firmware"}
	}
}

// operating is an attempt that the provider has accepted, unless accepted is 0, and that was looked
// at again at checked.
func operating(minute float64, number int64, accepted, checked float64) step {
	return func(r *fleet.Record) {
		a := &fleet.OperationAttempt{Number: number, Attempt: 1, At: at(minute), BootID: "boot-1"}
		if accepted != 0 {
			a.AcceptedAt = ptr(at(accepted))
		}
		if checked != 0 {
			a.CheckedAt = ptr(at(checked))
		}
		r.OperationAttempt = a
	}
}

func operated(minute float64, number int64, ok bool) step {
	return func(r *fleet.Record) {
		r.OperationReport = &fleet.OperationReport{Number: number, At: at(minute), OK: ok, Detail: "seen"}
	}
}

func maintenance(minute, until float64, over bool) step {
	return func(r *fleet.Record) {
		r.Maintenance = &fleet.Maintenance{At: at(minute), Actor: "ada", Reason: "a new fan", Over: over}
		if until != 0 {
			r.Maintenance.Until = ptr(at(until))
		}
	}
}

func cancelled(minute float64, generation fleet.InstallGeneration) step {
	return func(r *fleet.Record) {
		r.InstallCancel = &fleet.InstallCancel{Generation: generation, At: at(minute), Actor: "ada", Reason: "the wrong image"}
	}
}

// hold stops recovery until a minute; 0: for good.
func hold(until float64) func(*fleet.Environment) {
	return func(e *fleet.Environment) {
		e.RecoveryHold = &fleet.RecoveryHold{At: at(1), Actor: "bmdb", Reason: "900 of 1000 machines fell silent"}
		if until != 0 {
			e.RecoveryHold.Until = ptr(at(until))
		}
	}
}

func unreadable(r *fleet.Record) { r.Unreadable = "the image is garbled" }

func record(steps ...step) fleet.Record {
	r := fleet.Record{
		Machine:  fleet.Machine{ID: "m-1", Provider: "metal", CreatedAt: at(0)},
		Backoffs: map[fleet.Process]fleet.BackoffState{},
		Holds:    map[fleet.Lane]fleet.Hold{},
	}
	for _, s := range steps {
		s(&r)
	}
	return r
}

// full is a listener that had no room in that time.
func full(since, until float64) func(*fleet.Environment) {
	return func(e *fleet.Environment) { e.ListenerFullSince, e.ListenerFullUntil = at(since), at(until) }
}

func environment() fleet.Environment {
	return fleet.Environment{Policy: fleet.DefaultPolicy(), ListenerUpSince: at(-60), PromisedInterval: 30 * time.Second}
}

// due is what the specification says of one process: verdict, minute (for a scheduled one), and
// words that the reason holds.
type due struct {
	process fleet.Process
	verdict lifecycle.Verdict
	minute  float64
	words   string
}

const (
	agentStart = fleet.ProcessAgentStart
	install    = fleet.ProcessInstall
	recovery   = fleet.ProcessRecovery
	operation  = fleet.ProcessOperation
	provision  = fleet.ProcessProvision
	update     = fleet.ProcessUpdate
	probe      = fleet.ProcessProbe
	returning  = fleet.StateReturning
)

// Steps that many cases share: the way of a machine up to a point.
var (
	active     = []step{provided(1, fleet.ProviderStatusActive)}
	agent      = append(active[:1:1], started(2, 1))
	speaking   = append(agent[:2:2], seen(3, 3, 1))
	known      = append(speaking[:3:3], hardware(3))
	asked      = append(known[:4:4], wantInstall(0, 1))
	underWay   = append(asked[:5:5], attempt(4, 1, 1))
	written    = append(underWay[:6:6], report(5, 1, 1, true))
	up         = append(written[:7:7], installed(6, 1))
	unseen     = append(written[:7:7], seenUp(true), allLevers)
	watched    = append(up[:8:8], seenUp(true), allLevers)
	reinstall  = append(up[:8:8], wantInstall(20, 2))
	broken     = append(known[:4:4], backoff(agentStart, 14, "no route to host"))
	allLevers  = levers(fleet.LeverReboot, fleet.LeverPower, fleet.LeverReinstall, fleet.LeverRelease)
	reinstall2 = append(reinstall[:9:9], started(22, 2), seen(23, 23, 2))
)

func with(steps []step, more ...step) []step { return append(steps[:len(steps):len(steps)], more...) }
