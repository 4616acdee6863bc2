package bmdb

import (
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// Happening is something that an operator wants counted by its cause. The Observer is told of it
// once it is committed, by the process that committed it.
type Happening string

// The happenings.
const (
	// HappeningSessionLost: a session ended that was not extended in time, or whose process was gone.
	HappeningSessionLost Happening = "session lost"
	// HappeningInstallFailed: an attempt at an install ended without an installed disk.
	HappeningInstallFailed Happening = "install failed"
	// HappeningRecovery: a machine is in trouble, and the first step was taken. Its causes are those
	// of lifecycle.Troubles.
	HappeningRecovery Happening = "recovery"
)

// The causes of HappeningSessionLost.
const (
	// LostOverdue: it was not extended in time.
	LostOverdue = "overdue"
	// LostReopened: the only process that can have the database open opened it anew.
	LostReopened = "reopened"
)

// The causes of HappeningInstallFailed.
const (
	// FailedReported: the agent says so.
	FailedReported = "reported"
	// FailedRefused: the disk holds an install of this machine that is not older.
	FailedRefused = "refused"
	// FailedCalledOff: a person did not want it any more.
	FailedCalledOff = "called-off"
	// FailedNoReport: its time was over, or the agent that had it was gone.
	FailedNoReport = "no-report"
	// FailedNeverStarted: the answer that handed it out was lost.
	FailedNeverStarted = "never-started"
)

// Causes lists the causes of each happening.
func Causes() map[Happening][]string {
	return map[Happening][]string{
		HappeningSessionLost:   {LostOverdue, LostReopened},
		HappeningInstallFailed: {FailedReported, FailedRefused, FailedCalledOff, FailedNoReport, FailedNeverStarted},
		HappeningRecovery:      lifecycle.Troubles(),
	}
}

type happened struct {
	what  Happening
	cause string
}

func (t *transaction) happens(what Happening, cause string) {
	t.happenings = append(t.happenings, happened{what, cause})
}

// installFailed tells the cause of a report of failure. before is the record without it.
func (t *transaction) installFailed(before fleet.Record, r fleet.InstallReport, actor string) {
	cause := FailedReported
	switch {
	case r.OK, lifecycle.Reported(before, r): // which counts already
		return
	case before.InstallCalledOff(r.Generation):
		cause = FailedCalledOff
	case r.HeldGeneration != 0 || r.NeedsErase || r.NotUnderstood:
		cause = FailedRefused
	case actor == actorBMDB && r.Disk == fleet.DiskUnknown:
		cause = FailedNoReport
	case actor == actorBMDB:
		cause = FailedNeverStarted
	}
	t.happens(HappeningInstallFailed, cause)
}

// recoveryBegins tells the cause of the trouble in which the first step is taken.
func (t *transaction) recoveryBegins(r fleet.Record) {
	if lifecycle.Repairing(r, *t.env, t.Now()) {
		return
	}
	if cause := lifecycle.TroubleOf(r, *t.env, t.Now()); cause != "" {
		t.happens(HappeningRecovery, cause)
	}
}
