package verb

import (
	"fmt"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// OnlyReinstall refuses an install that would destroy the system that is there.
func OnlyReinstall(r fleet.Record) error {
	return fleet.Errorf(fleet.KindConflict, "machine %s %s which a reinstall destroys: ask for one "+
		"(`ironherd machine install %s --image IMAGE --reinstall%s --reason WHY`)", r.Name(), onDisk(r), r.ID, eraseToo(r))
}

// onDisk begins a relative clause about the system that is there.
func onDisk(r fleet.Record) string {
	if lifecycle.Written(r) {
		return fmt.Sprintf("has install generation %d on its disk, which has not come up yet, and", r.InstallReport.Generation)
	}
	if lifecycle.ReinstalledElsewhere(r) {
		return "was reinstalled at its provider, for somebody else,"
	}
	return fmt.Sprintf("runs an installed system (%s),", r.Installed.Words())
}

// eraseToo is what a reinstall needs besides where no install of ours has put on the disk what is
// there: it was marked or adopted as installed, or its provider has reinstalled it.
func eraseToo(r fleet.Record) string {
	if i := r.Installed; i != nil && (i.Attempt == 0 || i.ErasedAt != nil) {
		return " --erase"
	}
	return ""
}

// Cancelled says what comes of calling the newest install off, and what that leaves on the disk;
// "": what was there. An attempt that is open is told to stop, and reports then. One that has
// failed has been reported, or was given up: its agent may be at it still, and is told.
func Cancelled(r fleet.Record) (told, disk string) {
	a, undefined := r.InstallAttempt, "what the disk holds is undefined"
	switch {
	case cancellable(r) != nil:
		return "", ""
	case r.OpenInstallAttempt() != nil:
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

// markable fails where nobody can say that an operating system runs on the machine: it is known
// already, the machine is not there yet, or an agent speaks from it.
func markable(x Case) error {
	r := x.Record
	switch {
	case r.Provided == nil:
		return fleet.Errorf(fleet.KindConflict, "machine %s is not there yet: nothing runs on it", r.Name())
	case lifecycle.Installed(r) && !lifecycle.ReinstalledElsewhere(r):
		return fleet.Errorf(fleet.KindConflict, "machine %s is installed already (%s)", r.Name(), r.Installed.Words())
	case lifecycle.Speaks(r, x.Env, x.Now):
		return fleet.Errorf(fleet.KindConflict, "the agent of machine %s speaks; if an operating system that is to be left alone runs there, end the agent on the host first",
			r.Name())
	}
	return nil
}

// AnswersRequest says which install counts as done when the machine is marked as installed; "":
// none was asked for.
func AnswersRequest(r fleet.Record) string {
	if r.InstallRequest == nil {
		return ""
	}
	return fmt.Sprintf("; install generation %d counts as done", r.InstallRequest.Generation)
}
