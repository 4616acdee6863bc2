package bmdb

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// The steps of the recovery ladder: what is committed before the effect of one, how one is taken
// back that had none, and what history says when a machine is heard again.

// TakeStep records a step of the recovery ladder, to be followed by its effect; the last one
// quarantines the machine. A reinstall makes what is wanted on the disk a new install, because an
// agent refuses to install the same one twice. KindConflict unless lifecycle says that the step is
// due.
func TakeStep(rung fleet.Rung) Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
		m, machine := c.machine, c.work.Subject.Machine
		// A stop of recovery is committed under this lock: whoever has waited for one sees it.
		if err := t.lockRecovery(ctx); err != nil {
			return err
		}
		free := *m
		free.lane = lane{} // it is ours
		plan, err := t.judge(ctx, &free)
		if err != nil {
			return err
		}
		d := plan.For(fleet.ProcessRecovery)
		if d.Rung != rung || d.DueAt.After(t.Now()) {
			return fleet.Errorf(fleet.KindConflict, "a %s of machine %s is not due: %s", rung, machine, d.Reason)
		}
		if rung.Restarts() {
			if err := t.spendBudget(ctx, machine); err != nil {
				return err
			}
		}
		if err := t.putRepair(ctx, m, rung); err != nil {
			return err
		}
		c.addHistory(t, machine, fleet.EventRepairStep, fmt.Sprintf("%s: %s", rung, d.Reason))
		if rung != fleet.RungQuarantine {
			t.startsAnew(machine)
		}
		switch rung {
		case fleet.RungReinstall:
			err := t.q.PutErased(ctx, statement.PutErasedParams{Machine: string(machine), At: micros(t.Now())})
			if err != nil {
				return err
			}
			if err := t.forgetHostKeys(ctx, machine); err != nil {
				return err
			}
			return t.installAnew(ctx, c)
		case fleet.RungQuarantine:
			reason, err := t.gaveUp(ctx, m.facts, d)
			if err != nil {
				return err
			}
			c.addHistory(t, machine, fleet.EventQuarantined, reason)
			return t.q.PutQuarantine(ctx, statement.PutQuarantineParams{
				Machine: string(machine), At: micros(t.Now()), Actor: "recovery", Reason: reason,
			})
		case fleet.RungAgentStart, fleet.RungReboot, fleet.RungPowerCycle:
		}
		return nil
	}}
}

// gaveUp says why recovery quarantines a machine, with the steps that did not help.
func (t *transaction) gaveUp(ctx context.Context, r fleet.Record, d lifecycle.Decision) (string, error) {
	tried := lifecycle.NextRepair(r, *t.env, t.Now(), fleet.RungQuarantine).Steps
	refused, err := t.refused(ctx, r.ID, t.Now().Add(-t.env.Policy.RecoveryMemory))
	if err != nil {
		return "", err
	}
	for rung := range refused {
		refused[rung] = min(refused[rung], tried[rung])
		tried[rung] -= refused[rung]
	}
	text := "recovery found no step"
	if done := lifecycle.StepsTaken(tried); done != "" {
		text = "recovery found no other step after " + done
	}
	if not := lifecycle.StepsTaken(refused); not != "" {
		text += fmt.Sprintf(" (%s refused %s)", r.Provider, not)
	}
	return text + ": " + d.Reason, nil
}

// refused counts the steps that a provider has refused for good since an instant, as far as the
// newest rows of the machine's history tell.
func (t *transaction) refused(ctx context.Context, machine fleet.MachineID, since time.Time) (map[fleet.Rung]int, error) {
	const most = 200
	rows, err := t.q.ListHistory(ctx, newest(machineKey(machine), most))
	refused := make(map[fleet.Rung]int)
	for _, row := range rows {
		if row.Event == string(fleet.EventRepairRefused) && instant(row.At).After(since) {
			name, _, _ := strings.Cut(row.Detail, ":")
			refused[fleet.Rung(name)]++
		}
	}
	return refused, err
}

// forgetHostKeys removes the host keys that a machine will not have after its reinstall. Those that
// were put into its user data it will have again.
func (t *transaction) forgetHostKeys(ctx context.Context, machine fleet.MachineID) error {
	known, err := t.hostKeys(ctx, machine)
	if err != nil || known.Source == fleet.HostKeyInjected {
		return err
	}
	return t.q.DeleteHostKeys(ctx, string(machine))
}

// startsAnew ends the backoff of agent starts: what failed before a restart says nothing of what
// comes after it, and the wait could outlast the time in which the restart has to show its effect.
func (t *transaction) startsAnew(machine fleet.MachineID) {
	t.buffer.resetBackoff(machineKey(machine), fleet.ProcessAgentStart)
}

// installAnew gives the install that is wanted a generation of its own, above what a disk may hold.
// What the provider puts on the disk may be erased, whatever was asked for: but only on the disk
// that this install was writing before. That one is named by its serial number, because any other
// may hold what nobody has allowed to be erased.
func (t *transaction) installAnew(ctx context.Context, c *commit) error {
	r, machine := c.machine.facts, c.work.Subject.Machine
	was := r.InstallRequest
	if was == nil || r.InstallCalledOff(was.Generation) {
		return nil
	}
	data, err := t.q.GetFirstBootData(ctx, string(machine))
	if err != nil {
		return err
	}
	next := *was
	next.Generation, next.FirstBootData = max(was.Generation, r.HeldInstall())+1, data
	detail := fmt.Sprintf("install generation %d, the same as generation %d: recovery has the machine reinstalled", next.Generation, was.Generation)
	if rep := r.InstallReport; rep != nil && rep.Generation == was.Generation && rep.DiskSerial() != "" && !was.RootDisk.Erase {
		next.RootDisk.Serial, next.RootDisk.Erase = rep.DiskSerial(), true
		detail += fmt.Sprintf(", and what is then on the disk with the serial number %q is erased", rep.DiskSerial())
	}
	if err := t.putInstallRequest(ctx, machine, next); err != nil {
		return err
	}
	t.wantsAnew(machine)
	c.addHistory(t, machine, fleet.EventInstallRequested, detail)
	return nil
}

// BeforeStep is what a step of the recovery ladder changes, as it was before.
type BeforeStep struct {
	// Repair is nil when there was no step before.
	Repair *fleet.Repair
	// Install and HostKeys are changed by a reinstall alone. Install is nil when none was asked for.
	Install  *fleet.InstallRequest
	HostKeys fleet.HostKeys
	// AgentStart is what agent starts waited for; nil for nothing. It says since when a host that
	// never had an agent has not answered.
	AgentStart *fleet.BackoffState
}

// UndoStep takes back the newest step of the recovery ladder, which certainly had no effect.
// KindConflict when the newest step is another one.
func UndoStep(rung fleet.Rung, was BeforeStep) Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
		is, machine, before := c.machine.facts.Repair, c.work.Subject.Machine, 0
		if was.Repair != nil {
			before = was.Repair.Steps[rung]
		}
		if is == nil || is.Rung != rung || is.Steps[rung] > before+1 {
			return fleet.Errorf(fleet.KindConflict, "a %s is not the newest recovery step of machine %s", rung, machine)
		}
		if err := t.hadNoEffect(ctx, c, *is, was); err != nil {
			return err
		}
		// An agent that was heard meanwhile has ended it.
		_, since := c.machine.facts.Backoffs[fleet.ProcessAgentStart]
		if !since && was.AgentStart != nil && !lifecycle.HeardSinceStep(c.machine.facts) {
			t.buffer.backoff(machineKey(machine), fleet.ProcessAgentStart, *was.AgentStart)
		}
		if was.Repair != nil {
			return t.writeRepair(ctx, machine, *was.Repair)
		}
		return t.q.DeleteRepair(ctx, string(machine))
	}}
}

// StepDone has the time of the newest step of the recovery ladder begin now: the provider has
// answered, which may have taken it longer than a step has. It changes nothing where the step has
// helped already, or another one is the newest.
func StepDone(rung fleet.Rung) Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
		r, machine := c.machine.facts, c.work.Subject.Machine
		if r.Repair == nil || r.Repair.Rung != rung || !lifecycle.Repairing(r, *t.env, t.Now()) {
			return nil
		}
		done := *r.Repair
		done.At = t.Now()
		// A version that knows no refused step takes a step without it for one.
		err := t.q.DeleteRecoveryRestart(ctx, statement.DeleteRecoveryRestartParams{Machine: string(machine), At: micros(r.Repair.At)})
		if err != nil {
			return err
		}
		if err := t.q.PutRecoveryRestart(ctx, statement.PutRecoveryRestartParams{Machine: string(machine), At: micros(done.At)}); err != nil {
			return err
		}
		return t.writeRepair(ctx, machine, done)
	}}
}

// RefuseStep records that the provider has refused the newest step of the recovery ladder for good,
// and why. It had no effect. It stays counted, so that the next one follows. KindConflict when the
// newest step is another one.
func RefuseStep(rung fleet.Rung, was BeforeStep, why string) Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
		is, machine := c.machine.facts.Repair, c.work.Subject.Machine
		if is == nil || is.Rung != rung {
			return fleet.Errorf(fleet.KindConflict, "a %s is not the newest recovery step of machine %s", rung, machine)
		}
		c.addHistory(t, machine, fleet.EventRepairRefused, fmt.Sprintf("%s: %s", rung, why))
		if err := t.hadNoEffect(ctx, c, *is, was); err != nil {
			return err
		}
		refused := *is
		refused.Refused = true
		return t.writeRepair(ctx, machine, refused)
	}}
}

// hadNoEffect takes back what a step of the recovery ladder changes besides the count of steps. The
// step costs the budget nothing.
func (t *transaction) hadNoEffect(ctx context.Context, c *commit, step fleet.Repair, was BeforeStep) error {
	machine := c.work.Subject.Machine
	err := t.q.DeleteRecoveryRestart(ctx, statement.DeleteRecoveryRestartParams{Machine: string(machine), At: micros(step.At)})
	if err != nil || step.Rung != fleet.RungReinstall {
		return err
	}
	err = t.q.DeleteErased(ctx, statement.DeleteErasedParams{Machine: string(machine), At: micros(step.At)})
	if err != nil {
		return err
	}
	return t.undoReinstall(ctx, c, was)
}

// undoReinstall restores what a reinstall that did not happen has replaced: the system on the disk
// is the one that was wanted, and has the keys that were known.
func (t *transaction) undoReinstall(ctx context.Context, c *commit, was BeforeStep) error {
	r, machine := c.machine.facts, c.work.Subject.Machine
	if err := t.restoreHostKeys(ctx, machine, was.HostKeys); err != nil {
		return err
	}
	request := r.InstallRequest
	if was.Install == nil || request == nil || request.Generation == was.Install.Generation {
		return nil
	}
	data, err := t.q.GetFirstBootData(ctx, string(machine))
	if err != nil {
		return err
	}
	again := *was.Install
	again.FirstBootData = data
	c.addHistory(t, machine, fleet.EventInstallRequested,
		fmt.Sprintf("install generation %d again: the reinstall did not happen, so generation %d is not wanted", again.Generation, request.Generation))
	// Who called off the one means the other as well.
	if off := r.InstallCancel; r.InstallCalledOff(request.Generation) {
		err := t.q.PutInstallCancel(ctx, statement.PutInstallCancelParams{
			Machine: string(machine), Generation: int64(again.Generation), At: micros(off.At), Actor: off.Actor, Reason: off.Reason,
		})
		if err != nil {
			return err
		}
	}
	return t.putInstallRequest(ctx, machine, again)
}

// restoreHostKeys restores the host keys that a reinstall has made unknown. It leaves those alone
// that were put into the user data, as forgetHostKeys does.
func (t *transaction) restoreHostKeys(ctx context.Context, machine fleet.MachineID, was fleet.HostKeys) error {
	switch {
	case was.Source == fleet.HostKeyInjected:
		return nil
	case len(was.Known) == 0:
		return t.q.DeleteHostKeys(ctx, string(machine))
	}
	return t.q.PutHostKeys(ctx, statement.PutHostKeysParams{
		Machine: string(machine), At: micros(was.At), Pinned: joinLines(was.Known), Source: string(was.Source),
	})
}

// putRepair writes the repair fact of a step that is taken now.
func (t *transaction) putRepair(ctx context.Context, m *machineRecord, rung fleet.Rung) error {
	t.recoveryBegins(m.facts)
	return t.writeRepair(ctx, m.facts.ID, lifecycle.NextRepair(m.facts, *t.env, t.Now(), rung))
}

func (t *transaction) writeRepair(ctx context.Context, machine fleet.MachineID, r fleet.Repair) error {
	var refused int64
	if r.Refused {
		refused = micros(r.At)
	}
	return t.q.PutRepair(ctx, statement.PutRepairParams{
		Machine: string(machine), Since: micros(r.Since), Rung: string(r.Rung), At: micros(r.At),
		AgentStarts: int64(r.Steps[fleet.RungAgentStart]), Reboots: int64(r.Steps[fleet.RungReboot]),
		PowerCycles: int64(r.Steps[fleet.RungPowerCycle]), Reinstalls: int64(r.Steps[fleet.RungReinstall]),
		TakeoverGeneration: int64(r.TakeoverGeneration), BootID: r.BootID, RefusedStep: refused,
	})
}

// EndStep ends the newest step of the recovery ladder, which has restarted nothing: its time is
// over, and the machine is heard as before. The steps that were taken stay counted. KindConflict
// unless lifecycle says that it is so.
func EndStep() Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
		r, machine := c.machine.facts, c.work.Subject.Machine
		over := lifecycle.StepOver(r, *t.env, t.Now())
		if over == "" {
			return fleet.Errorf(fleet.KindConflict, "the newest recovery step of machine %s is not over", machine)
		}
		c.addHistory(t, machine, fleet.EventRepaired, over)
		ended := *r.Repair
		ended.TakeoverGeneration, ended.BootID = 0, ""
		return t.writeRepair(ctx, machine, ended)
	}}
}

// heard tells history that an agent was just heard after a step of recovery, if that ends the
// trouble. The agent from before a restart does not end it.
func (t *transaction) heard(before fleet.Record, a AgentIdentity, bootID string) {
	if helped(before, a, bootID) {
		t.recovered(before, actorAgent, bootID)
	}
}

// helped reports whether an agent that is heard now ends the trouble of the newest step.
func helped(before fleet.Record, a AgentIdentity, bootID string) bool {
	return lifecycle.Helped(before, fleet.AgentSeen{TakeoverGeneration: a.TakeoverGeneration, BootID: bootID})
}

// recovered tells the history of a machine that was being repaired, and whose agent or installed
// system has just been heard, what it was heard after. before is the record from before that.
func (t *transaction) recovered(before fleet.Record, actor, bootID string) {
	if !lifecycle.Repairing(before, *t.env, t.Now()) {
		return
	}
	r := before.Repair
	evidence := "the same boot ID"
	switch {
	case bootID == "":
		evidence = "an answer to a probe"
	case r.BootID == "":
		evidence = "a boot ID"
	case bootID != r.BootID:
		evidence = "another boot ID"
	case r.Rung.Restarts() && !r.Refused:
		evidence = "the same boot ID, by a new agent: it has not been restarted yet"
	}
	t.addEvent(fleet.Subject{Machine: before.ID}, actor, fleet.ProcessRecovery, fleet.EventRepaired,
		fmt.Sprintf("heard %s after the step %s, with %s", max(0, t.Now().Sub(r.At)).Round(time.Second), r.Rung, evidence))
}
