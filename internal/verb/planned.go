package verb

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// Planned is what a plan does to one machine, and what it knew of it.
type Planned struct {
	Machine  fleet.MachineID    `json:"machine"`
	Name     string             `json:"name"`
	Provider fleet.ProviderName `json:"provider"`
	State    fleet.State        `json:"state"`
	// Does says what happens, and Destroys what is lost by it; empty: nothing is.
	Does     string `json:"does"`
	Destroys string `json:"destroys,omitempty"`
	// InUse says what runs on the machine, or is being installed; empty: nothing.
	InUse string `json:"in_use,omitempty"`
	// Refused says why nothing is done; empty: it is.
	Refused string `json:"refused,omitempty"`
	// Unstopped: during the maintenance goes on what the provider was asked for, or an install that
	// its agent works at.
	Unstopped bool `json:"unstopped,omitempty"`
	// Overrules: an operation is called off that another person has asked for.
	Overrules bool `json:"overrules,omitempty"`

	// What the plan was made for: the numbers of the newest install and operation that were asked
	// for, the install that a disk was found to hold, whether the operation is under way, and a sum
	// that changes with maintenance, quarantine and cancels.
	Requested fleet.InstallGeneration `json:"requested,omitempty"`
	Held      fleet.InstallGeneration `json:"held,omitempty"`
	Operation int64                   `json:"operation,omitempty"`
	Operating bool                    `json:"operating,omitempty"`
	Marked    int64                   `json:"marked,omitempty"`
}

// Judge says what the request does to the machine, and why it cannot be done; nil: it can.
func Judge(x Case) (planned Planned, refused error) {
	r, means := x.Record, Of(x.Verb)
	planned = Planned{
		Machine: r.ID, Name: r.Name(), Provider: r.Provider, State: x.State, InUse: inUse(r), Does: means.Does(x),
		Unstopped: x.Verb == fleet.VerbBeginMaintenance && r.OpenInstallAttempt() != nil, Overrules: overrules(x),
		Requested: r.NewestInstall(), Held: r.HeldInstall(), Operating: r.OpenOperation() != nil, Marked: marked(r),
	}
	if r.Operation != nil {
		planned.Operation = r.Operation.Number
	}
	if slices.Contains(x.Service.Unserved, means.Doer) {
		planned.Does += fmt.Sprintf(", when a control plane that has the role %s serves %s", means.Doer, r.Provider)
	}
	if means.Destroys != nil {
		planned.Destroys = means.Destroys(x)
	}
	if refused = means.Possible(x); refused != nil {
		planned.Refused = refused.Error()
	}
	return planned, refused
}

// Differs says what has changed since the plan was made, so that it is not true any more; "":
// nothing has.
func (planned Planned) Differs(now Planned) string {
	switch {
	case planned.State != now.State:
		return fmt.Sprintf("it was %s when the plan was made, and is %s now", planned.State, now.State)
	case planned.InUse != now.InUse:
		return fmt.Sprintf("it was %s when the plan was made, and is %s now", cmp.Or(planned.InUse, "not in use"), cmp.Or(now.InUse, "not in use"))
	case planned.Requested != now.Requested:
		return fmt.Sprintf("install generation %d was asked for since the plan was made", now.Requested)
	case planned.Held != now.Held:
		return fmt.Sprintf("a disk was found to hold install generation %d since the plan was made", now.Held)
	case planned.Operation != now.Operation:
		return fmt.Sprintf("operation %d was asked for since the plan was made", now.Operation)
	case planned.Operating != now.Operating:
		return fmt.Sprintf("operation %d has ended since the plan was made", now.Operation)
	case planned.Marked != now.Marked:
		return "a quarantine, a maintenance or an install was begun or called off since the plan was made"
	}
	return ""
}

// NeedConfirmation says whether the verb destroys or interrupts something on one of the machines,
// leaves to go on what a person may take for stopped, calls off what another person has asked for,
// or is possible on several machines.
func NeedConfirmation(v fleet.Verb, machines []Planned) bool {
	able := 0
	for _, m := range machines {
		if m.Refused != "" {
			continue
		}
		able++
		if m.Destroys != "" || m.Unstopped || m.Overrules || v == fleet.VerbPowerOff {
			return v != fleet.VerbCancelInstall || len(machines) > 1
		}
	}
	return able > 1
}

// marked changes with every maintenance, quarantine and cancel.
func marked(r fleet.Record) (sum int64) {
	if r.Maintenance != nil {
		sum += r.Maintenance.At.UnixMicro()
	}
	if r.Quarantine != nil {
		sum += r.Quarantine.At.UnixMicro()
	}
	if r.InstallCancel != nil {
		sum += r.InstallCancel.At.UnixMicro()
	}
	return sum
}

// inUse says what runs on the machine, or is being installed on it.
func inUse(r fleet.Record) string {
	q, a, rep := r.InstallRequest, r.InstallAttempt, r.InstallReport
	open := r.OpenInstallAttempt()
	switch {
	case open != nil:
		return fmt.Sprintf("installing (generation %d, attempt %d)", open.Generation, open.Attempt)
	case q != nil && lifecycle.Written(r) && rep.Generation == q.Generation:
		return fmt.Sprintf("booting what was installed (generation %d)", q.Generation)
	case lifecycle.ReinstalledElsewhere(r):
		return "reinstalled at its provider, for somebody else"
	case r.Installed == nil || r.Installed.ErasedAt != nil || a != nil && a.Generation > r.Installed.Generation:
		return ""
	case r.Installed.Attempt == 0:
		return r.Installed.Words()
	}
	return fmt.Sprintf("installed (generation %d)", r.Installed.Generation)
}

// overrules reports whether the verb undoes what another person has asked for: an operation that is
// under way, or that the machine is switched off. A quarantine may: it is there for what must stop
// at once.
func overrules(x Case) bool {
	switch open := x.Record.OpenOperation(); {
	case CallsOff(x.Verb, x.Record) != "", x.Verb == fleet.VerbWithdraw && open != nil:
		return fleet.OfAnother(open.Actor, x.Actor)
	case x.Verb == fleet.VerbPowerOn && lifecycle.SwitchedOff(x.Record) != "":
		return fleet.OfAnother(x.Record.Operation.Actor, x.Actor)
	}
	return false
}

// mayCome says what the provider may do yet although the verb keeps work away from the machine, and
// what a power cycle by recovery leaves that is cut between off and on; "": nothing.
func (x Case) mayCome() string {
	r := x.Record
	what := lifecycle.MayStillCome(r, x.Env, x.Now)
	if what == "" {
		return ""
	}
	what += " may still come"
	r.Quarantine = nil // which ends recovery, and not what it has begun
	if !lifecycle.UnderRecovery(r, x.Env, x.Now) || r.Repair.Rung != fleet.RungPowerCycle {
		return what
	}
	until := fmt.Sprintf("until `ironherd machine power on %s --reason WHY`", r.ID)
	if x.Verb == fleet.VerbBeginMaintenance {
		until = "while the maintenance lasts"
	}
	return fmt.Sprintf("%s; %s may have switched it off already: then it stays off %s", what, r.Provider, until)
}

// goesOn says what goes on although work is kept away from the machine: what the provider was asked
// for, and an install that the agent works at; "": nothing does.
func (x Case) goesOn() string {
	var all []string
	r := x.Record
	if r.OperationAccepted() {
		open := r.OpenOperation()
		all = append(all, fmt.Sprintf("the %s that %s asked for, which %s has accepted, goes on", open.Operation, open.Actor, r.Provider))
	}
	if mayCome := x.mayCome(); mayCome != "" {
		all = append(all, mayCome)
	}
	if a := r.OpenInstallAttempt(); a != nil {
		all = append(all, fmt.Sprintf("attempt %d of install generation %d, which was handed out to its agent, goes on, and restarts the machine when it is done; "+
			"`ironherd machine install %s --cancel --reason WHY` ends it", a.Attempt, a.Generation, r.ID))
	}
	if len(all) == 0 {
		return ""
	}
	return ", but " + strings.Join(all, ", and ")
}
