package fleet

import (
	"strings"
	"time"
)

// Operation is what a person can ask to be done to one machine through its provider.
type Operation string

// The operations.
const (
	// OperationReboot restarts the machine.
	OperationReboot Operation = "reboot"
	// OperationPowerOn switches the machine on.
	OperationPowerOn Operation = "power-on"
	// OperationPowerOff switches the machine off. Nothing repairs it until it is switched on again.
	OperationPowerOff Operation = "power-off"
	// OperationPowerCycle switches the machine off and on.
	OperationPowerCycle Operation = "power-cycle"
	// OperationRelease gives the machine back to its provider, and keeps its capacity out of use.
	OperationRelease Operation = "release"
	// OperationReplace gives the machine back to its provider; the provisioner may create another one.
	OperationReplace Operation = "replace"
)

// Operations lists all operations in the order in which they are shown.
func Operations() []Operation {
	return []Operation{
		OperationReboot, OperationPowerOn, OperationPowerOff, OperationPowerCycle, OperationRelease, OperationReplace,
	}
}

// ActorPolicy is the actor of operations that the policy asks for.
const ActorPolicy = "policy"

// ConfigurationOf returns the actor of what the configuration of a provider asks for.
func ConfigurationOf(provider ProviderName) string {
	return "configuration of provider " + string(provider)
}

// ActorBMDB is the actor of what the BMDB did by itself.
const ActorBMDB = "bmdb"

// ShownActor returns what people are shown of an actor. The BMDB is a part of Ironherd that they
// need not know.
func ShownActor(actor string) string {
	if actor == ActorBMDB {
		return "ironherd"
	}
	return actor
}

// OfAnother reports whether something was asked for by a person other than the actor. What Ironherd
// itself has done, anybody may replace.
func OfAnother(by, actor string) bool {
	return by != actor && by != ActorBMDB && by != ActorPolicy && by != string(ProcessRecovery)
}

// ResumableStop reports whether a person can let recovery go on before a stop ends. One for a spent
// budget ends by itself. Where a release has made it that knew no causes, the actor tells, and
// whether it comes with what to check on our side.
func ResumableStop(cause StopCause, actor string, suspects int) bool {
	if cause == "" {
		return actor != ActorPolicy && (actor != ActorBMDB || suspects > 0)
	}
	return cause != StopBudget
}

// Of returns the operation as what is done to something, such as "power machines off".
func (o Operation) Of(what string) string {
	switch o {
	case OperationPowerOn, OperationPowerOff:
		verb, way, _ := strings.Cut(string(o), "-")
		return verb + " " + what + " " + way
	}
	return string(o) + " " + what
}

// Lever returns what the provider must be able to do for the operation.
func (o Operation) Lever() Lever {
	switch o {
	case OperationReboot:
		return LeverReboot
	case OperationPowerOn, OperationPowerOff, OperationPowerCycle:
		return LeverPower
	case OperationRelease, OperationReplace:
		return LeverRelease
	}
	return ""
}

// Restarts reports whether whatever runs on the machine is gone after the operation, and an agent
// must be started anew.
func (o Operation) Restarts() bool {
	return o == OperationReboot || o == OperationPowerOn || o == OperationPowerCycle
}

// Switches reports whether it says that the machine is to be on, or off, from then on.
func (o Operation) Switches() bool { return o == OperationPowerOn || o == OperationPowerOff }

// GivesBack reports whether the machine is not ours any more afterwards.
func (o Operation) GivesBack() bool { return o == OperationRelease || o == OperationReplace }

// Command is the command of `ironherd machine` that asks for it, as in "power on".
func (o Operation) Command() string { return strings.ReplaceAll(string(o), "-", " ") }

// Lever is something that a provider can do to a machine from outside.
type Lever string

// The levers.
const (
	LeverReboot    Lever = "reboot"
	LeverPower     Lever = "power"
	LeverReinstall Lever = "reinstall"
	LeverRelease   Lever = "release"
	// LeverClean: a machine that is released stays where it is, and is left clean.
	LeverClean Lever = "clean"
)

// OperationRequest is the newest operation that was asked for. Written by an operator, and by the
// policy for machines that their provider gave up.
type OperationRequest struct {
	// Number grows with each request of the machine.
	Number    int64
	Operation Operation
	At        time.Time
	Actor     string
	Reason    string
}

// OperationAttempt is the newest attempt at an operation. Committed before the provider is called.
// Written by the loop that carries operations out.
type OperationAttempt struct {
	// Number of the request.
	Number int64
	// Attempt counts from 1 within a request. One that certainly had no effect may have been taken
	// back, and is not counted.
	Attempt int
	At      time.Time
	// BootID that the machine had, as far as anybody knew; empty: nobody did.
	BootID string
	// AcceptedAt is when the provider had accepted the call; nil while it has not.
	AcceptedAt *time.Time
	// CheckedAt is when the provider was last asked what has become of it; nil: not yet.
	CheckedAt *time.Time
}

// OperationReport is how the newest ended operation has ended. Written by the loop that carries
// operations out.
type OperationReport struct {
	// Number of the request.
	Number int64
	At     time.Time
	OK     bool
	// Detail is the evidence, or the cause of the failure, in one clause.
	Detail string
}

// OpenOperation returns the operation that was asked for and has not ended; nil when there is none.
func (r Record) OpenOperation() *OperationRequest {
	if r.CurrentOperationReport() != nil {
		return nil
	}
	return r.Operation
}

// CurrentOperationAttempt returns the newest attempt at the newest request; nil: none was begun.
func (r Record) CurrentOperationAttempt() *OperationAttempt {
	if a := r.OperationAttempt; a != nil && r.Operation != nil && a.Number == r.Operation.Number {
		return a
	}
	return nil
}

// CurrentOperationReport returns how the newest request has ended; nil: it has not.
func (r Record) CurrentOperationReport() *OperationReport {
	if e := r.OperationReport; e != nil && r.Operation != nil && e.Number == r.Operation.Number {
		return e
	}
	return nil
}

// OperationAccepted reports whether the provider has accepted the operation that is under way.
func (r Record) OperationAccepted() bool {
	a := r.CurrentOperationAttempt()
	return r.OpenOperation() != nil && a != nil && a.AcceptedAt != nil
}

// HalfCycled reports whether a power cycle was begun that the provider has not accepted: it may
// have been switched off, and not on again.
func (r Record) HalfCycled() bool {
	open, a := r.OpenOperation(), r.CurrentOperationAttempt()
	return open != nil && open.Operation == OperationPowerCycle && a != nil && a.AcceptedAt == nil
}

// InMaintenance reports whether a maintenance is under way, in which no operation can be asked for.
func (r Record) InMaintenance() bool { return r.Maintenance != nil && !r.Maintenance.Over }

// Gone reports whether the provider is certain that it does not have the machine.
func (r Record) Gone() bool { return r.Provided != nil && r.Provided.Status == ProviderStatusGone }

// Maintenance keeps Ironherd from touching the host, and makes its silence expected. Written by an
// operator. The end of a quarantine writes one that is over.
type Maintenance struct {
	At time.Time
	// Until is when it ends by itself; nil: by a person's word only.
	Until  *time.Time
	Actor  string
	Reason string
	// Over says that it has ended; its end is kept, because silence counts only from there.
	Over bool
}

// Rung is a step of the recovery ladder.
type Rung string

// The rungs, from the mildest to the last.
const (
	// RungAgentStart starts the agent again.
	RungAgentStart Rung = "agent-start"
	// RungReboot restarts the machine.
	RungReboot Rung = "reboot"
	// RungPowerCycle switches the machine off and on.
	RungPowerCycle Rung = "power-cycle"
	// RungReinstall has the provider put its own operating system back, which destroys the disk.
	RungReinstall Rung = "reinstall"
	// RungQuarantine keeps the machine for a person to look at.
	RungQuarantine Rung = "quarantine"
)

// Restarts reports whether the step restarts the machine.
func (r Rung) Restarts() bool {
	return r == RungReboot || r == RungPowerCycle || r == RungReinstall
}

// Rungs lists all rungs, from the mildest to the last.
func Rungs() []Rung {
	return []Rung{RungAgentStart, RungReboot, RungPowerCycle, RungReinstall, RungQuarantine}
}

// Repair is how far the recovery ladder has gone in the present trouble, or in the last one.
// Written by whoever takes a step, in the transaction that comes before the step's effect.
type Repair struct {
	// Since is when the trouble began.
	Since time.Time
	// Rung is the newest step, which was taken At.
	Rung Rung
	At   time.Time
	// Steps counts the steps of each rung; what was done for a trouble that is long over is not
	// counted.
	Steps map[Rung]int
	// TakeoverGeneration and BootID are those from before the newest step; empty: nobody knew, or the
	// step is over and has restarted nothing. Then every heartbeat since is a sign of life.
	TakeoverGeneration TakeoverGeneration
	BootID             string
	// Refused: the provider has refused the newest step that restarts the machine. It stays counted,
	// and restarts nothing.
	Refused bool
}

// Pause keeps new machines from being created at a provider. Written by an operator.
type Pause struct {
	At     time.Time
	Actor  string
	Reason string
}

// RecoveryHold stops recovery: it reboots, power-cycles, reinstalls and quarantines no machine.
// Written by an operator, by the janitor when so many machines fall silent at once that the fault
// is probably ours, and in the name of the policy when the budget of an hour is spent.
type RecoveryHold struct {
	At time.Time
	// Until is when it ends by itself; nil: by a person's word only.
	Until  *time.Time
	Actor  string
	Cause  StopCause
	Reason string
}

// StopCause is why recovery is stopped.
type StopCause string

// The causes of a stop. Empty: a release that knew none has made it.
const (
	StopAsked   StopCause = "asked"   // a person asked for it
	StopBudget  StopCause = "budget"  // recovery has restarted as many machines as the policy allows
	StopSilence StopCause = "silence" // so many are silent at once that the fault is probably ours
	StopGrace   StopCause = "grace"   // most of those were heard again, and the others have time
)

// StopCauses lists them.
func StopCauses() []StopCause { return []StopCause{StopAsked, StopBudget, StopSilence, StopGrace} }
