package bmdb

import (
	"context"
	"fmt"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// cancelInstall calls the newest install request off, where that is possible. What is called off
// already stays as it is.
func (t *transaction) cancelInstall(ctx context.Context, m *machineRecord, actor, reason string) (changed bool, err error) {
	r := m.facts
	generation := r.InstallRequest.Generation
	if r.InstallCalledOff(generation) {
		return false, nil
	}
	err = t.q.PutInstallCancel(ctx, statement.PutInstallCancelParams{
		Machine: string(r.ID), Generation: int64(generation), At: micros(t.Now()), Actor: actor, Reason: reason,
	})
	if err != nil {
		return false, err
	}
	t.resetInstall(r.ID)
	t.addEvent(fleet.Subject{Machine: r.ID}, actor, fleet.ProcessInstall, fleet.EventInstallCancelled,
		fmt.Sprintf("install generation %d: %s", generation, reason))
	// Whoever serves the agent is to look.
	t.becomesDue(fleet.ProcessInstall, r.Provider, t.Now())
	return true, nil
}
