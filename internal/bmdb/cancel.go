package bmdb

import (
	"context"
	"fmt"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// cancelInstall calls the newest install request off, which is cancellable. What is called off
// already stays as it is.
func (t *transaction) cancelInstall(ctx context.Context, m *machineRecord, actor, reason string) (changed bool, err error) {
	r := m.record
	generation := r.InstallRequest.Generation
	if calledOff(r, generation) {
		return false, nil
	}
	err = t.q.PutInstallCancel(ctx, statement.PutInstallCancelParams{
		Machine: string(r.ID), Generation: int64(generation), At: micros(t.Now()), Actor: actor, Reason: reason,
	})
	if err != nil {
		return false, err
	}
	t.resetInstall(r.ID)
	t.recordEvent(fleet.Subject{Machine: r.ID}, actor, fleet.ProcessInstall, fleet.EventInstallCancelled,
		fmt.Sprintf("install generation %d: %s", generation, reason))
	// Whoever serves the agent is to look.
	t.becomesDue(fleet.ProcessInstall, r.Provider, t.Now())
	return true, nil
}

// cancelled says what comes of calling the newest install off, and what that leaves on the disk;
// "": what was there. An attempt that is open is told to stop, and reports then. One that has
// failed has been reported, or was given up: its agent may be at it still, and is told.
func cancelled(r fleet.Record) (told, disk string) {
	a, undefined := r.InstallAttempt, "what the disk holds is undefined"
	switch {
	case cancellable(r) != nil:
		return "", ""
	case openAttempt(r) != nil:
		return "; its agent is told with its next heartbeat, and says whether anything was written", undefined + ", unless nothing was written yet"
	case a == nil || a.Generation != r.InstallRequest.Generation:
		return " before anything was handed to an agent" + startGoesOn(r), ""
	case r.InstallReport.Untouched():
		return "; its last attempt has failed, and nothing was written" + startGoesOn(r), ""
	case r.InstallReport.Disk == fleet.DiskUnknown:
		return "; its last attempt was given up: an agent that is at it still is told with its next heartbeat, and " + undefined + startGoesOn(r), undefined
	}
	return "; its last attempt has failed, and " + undefined + startGoesOn(r), undefined
}

// startGoesOn says what becomes of the start of an agent on an installed system, which is under way
// although nothing is to be installed any more; "": none is.
//
// An agent that is started in place is on the host whether its start is recorded or not, so a start
// that was cut would leave an agent there that nobody takes off again. Before the agent is run,
// whoever starts it looks whether it is still wanted.
func startGoesOn(r fleet.Record) string {
	if r.Installed == nil || r.Installed.ErasedAt != nil || r.Holds[fleet.LaneHost].Process != fleet.ProcessAgentStart {
		return ""
	}
	return "; the start of an agent is under way: it normally ends if no agent has been run on the machine yet; " +
		"else, by kexec, what runs on the machine ends, and it is restarted into the installed system"
}

// cancellable fails where no install is under way.
func cancellable(r fleet.Record) error {
	switch req := r.InstallRequest; {
	case req == nil:
		return fleet.Errorf(fleet.KindConflict, "no install of machine %s was asked for", r.Name())
	case r.Installed != nil && r.Installed.Generation >= req.Generation:
		return fleet.Errorf(fleet.KindConflict, "install generation %d of machine %s has come up already", req.Generation, r.Name())
	case r.InstallReport != nil && r.InstallReport.OK && r.InstallReport.Generation == req.Generation:
		return fleet.Errorf(fleet.KindConflict, "install generation %d of machine %s is on its disk already", req.Generation, r.Name())
	}
	return nil
}

// calledOff says whether a person does not want that install any more.
func calledOff(r fleet.Record, generation fleet.InstallGeneration) bool {
	return r.InstallCancel != nil && r.InstallCancel.Generation == generation
}
