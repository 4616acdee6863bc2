package bmdb

import (
	"context"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/verb"
)

// markInstalled records that an operating system runs on the machine, because an operator says so,
// and voids whatever is being done to its host (rule 8). An attempt that is open has ended with
// that. If its system calls in all the same, that is known, too, and how it is to be watched. The
// machine is locked.
func (t *transaction) markInstalled(ctx context.Context, m *machineRecord, actor, reason string) error {
	r := m.facts
	if open := r.OpenInstallAttempt(); open != nil {
		report := fleet.InstallReport{
			Generation: open.Generation, Attempt: open.Attempt, Error: "given up: the machine was marked as installed", Disk: fleet.DiskUnknown,
		}
		if err := t.putReport(ctx, m, report, actor); err != nil {
			return err
		}
	}
	if err := t.putMarked(ctx, r.ID, max(1, r.NewestInstall())); err != nil {
		return err
	}
	t.buffer.resetBackoff(machineKey(r.ID), fleet.MachineProcesses()...)
	t.revoke(m, actor, "it is marked as installed")
	t.addEvent(fleet.Subject{Machine: r.ID}, actor, "", fleet.EventMarkedInstalled, reason+verb.AnswersRequest(r))
	return nil
}

// putMarked writes that an operating system runs on the machine that no attempt has installed.
func (t *transaction) putMarked(ctx context.Context, machine fleet.MachineID, generation fleet.InstallGeneration) error {
	return t.q.PutInstalled(ctx, statement.PutInstalledParams{
		Machine: string(machine), Generation: int64(generation), At: micros(t.Now()), SecretHash: []byte{},
	})
}
