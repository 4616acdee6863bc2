package lifecycle

import "github.com/ironherd/ironherd/internal/fleet"

// Written reports whether the newest report is of an install that was written, and that has not
// come up yet.
func Written(r fleet.Record) bool {
	rep := r.InstallReport
	return rep != nil && rep.OK && (r.Installed == nil || rep.Generation > r.Installed.Generation)
}

// OnDisk reports whether what was written, and has not come up yet, is on the disk still, and
// nothing that was asked for since is to take its place. It may run, and not be able to say so.
func OnDisk(r fleet.Record) bool {
	rep, q, a, step := r.InstallReport, r.InstallRequest, r.InstallAttempt, r.Repair
	switch {
	case !Written(r) || q == nil || a != nil && a.Generation > rep.Generation:
		return false
	case rep.Generation == q.Generation:
		return true
	case step != nil && step.Steps[fleet.RungReinstall] > 0 && step.At.After(rep.At):
		return false // the provider puts its own system there
	}
	return judgement{r: r}.calledOff()
}
