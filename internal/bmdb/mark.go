package bmdb

import (
	"context"
	"fmt"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// markable fails where nobody can say that an operating system runs on the machine: it is known
// already, the machine is not there yet, or an agent speaks from it.
func (t *transaction) markable(r fleet.Record) error {
	switch {
	case r.Provided == nil:
		return fleet.Errorf(fleet.KindConflict, "machine %s is not there yet: nothing runs on it", r.Name())
	case lifecycle.Installed(r) && !lifecycle.ReinstalledElsewhere(r):
		return fleet.Errorf(fleet.KindConflict, "machine %s is installed already (%s)", r.Name(), r.Installed.Words())
	case lifecycle.Speaks(r, *t.env, t.Now()):
		return fleet.Errorf(fleet.KindConflict, "the agent of machine %s speaks; if an operating system that is to be left alone runs there, end the agent on the host first",
			r.Name())
	}
	return nil
}

// answersRequest says which install counts as done when the machine is marked as installed; "":
// none was asked for.
func answersRequest(r fleet.Record) string {
	if r.InstallRequest == nil {
		return ""
	}
	return fmt.Sprintf("; install generation %d counts as done", r.InstallRequest.Generation)
}

// markInstalled records that an operating system runs on the machine, because an operator says so,
// and voids whatever is being done to its host (rule 8). An attempt that is open has ended with
// that. If its system calls in all the same, that is known, too, and how it is to be watched. The
// machine is locked.
func (t *transaction) markInstalled(ctx context.Context, m *machineRecord, actor, reason string) error {
	r := m.record
	if open := openAttempt(r); open != nil {
		report := fleet.InstallReport{
			Generation: open.Generation, Attempt: open.Attempt, Error: "given up: the machine was marked as installed", Disk: fleet.DiskUnknown,
		}
		if err := t.putReport(ctx, m, report, actor); err != nil {
			return err
		}
	}
	if err := t.putMarked(ctx, r.ID, max(1, newestGeneration(r))); err != nil {
		return err
	}
	t.buffer.resetBackoff(machineSubject(r.ID), fleet.MachineProcesses()...)
	t.revoke(m, actor, "it is marked as installed")
	t.recordEvent(fleet.Subject{Machine: r.ID}, actor, "", fleet.EventMarkedInstalled, reason+answersRequest(r))
	return nil
}

// putMarked writes that an operating system runs on the machine that no attempt has installed.
func (t *transaction) putMarked(ctx context.Context, machine fleet.MachineID, generation fleet.InstallGeneration) error {
	return t.q.PutInstalled(ctx, statement.PutInstalledParams{
		Machine: string(machine), Generation: int64(generation), At: micros(t.Now()), SecretHash: []byte{},
	})
}
