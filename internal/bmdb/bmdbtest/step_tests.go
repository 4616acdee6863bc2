package bmdbtest

import (
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// lostAfter is lost, of a machine with whose agent that was done before, and that recovery has its
// provider reinstall.
func (w *world) lostAfter(done func(a bmdb.AgentIdentity)) (fleet.MachineID, *bmdb.Work) {
	w.Helper()
	p := fleet.DefaultPolicy()
	p.RecoveryReboots, p.RecoveryReinstalls = 0, 1
	_, err := w.db.SetPolicy(w.ctx, p)
	w.must(err)
	w.must(w.db.SetLevers(w.ctx, provider, []fleet.Lever{fleet.LeverReinstall}))
	a := w.ready("c1", true)
	done(a)
	return a.Machine, w.falls(p)
}

// stepTests are of what a step of recovery changes besides the count of steps.
var stepTests = []test{
	// I9
	{"a reinstall by recovery erases no disk that only an install of before it has written", func(w *world) {
		id, work := w.lostAfter(func(a bmdb.AgentIdentity) {
			w.handOut(a, 0, 0)
			w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{
				Generation: 1, Attempt: 1, Disk: fleet.DiskWithSerial("/dev/sda", "S1"), Error: "the image ends early",
			}))
			w.must(errorOf2(w.db.RequestInstall(w.ctx, actor, a.Machine, fleet.InstallRequest{Image: image}, true)))
		})
		w.must(work.Finish(w.ctx, bmdb.TakeStep(fleet.RungReinstall)))
		if q := w.record(id).InstallRequest; q.Generation != 3 || q.RootDisk != (fleet.DiskSelector{}) {
			w.Fatalf("wanted is %+v", q)
		}
	}},
	// I9
	{"a reinstall by recovery is above the install that a disk holds", func(w *world) {
		id, work := w.lostAfter(func(a bmdb.AgentIdentity) {
			w.handOut(a, 0, 0)
			w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{
				Generation: 1, Attempt: 1, HeldGeneration: 4, Error: "/dev/sda holds install generation 4",
			}))
		})
		w.must(work.Finish(w.ctx, bmdb.TakeStep(fleet.RungReinstall)))
		if q := w.record(id).InstallRequest; q.Generation != 5 {
			w.Fatalf("wanted is %+v", q)
		}
	}},
	// rule 8
	{"a reinstall by recovery leaves an install called off that a person has called off", func(w *world) {
		id, work := w.lostAfter(func(bmdb.AgentIdentity) {})
		w.must(errorOf2(CancelInstall(w.ctx, w.db, "someone", id, "the wrong image")))
		w.must(work.Finish(w.ctx, bmdb.TakeStep(fleet.RungReinstall)))
		if r := w.record(id); r.InstallRequest.Generation != 1 || !r.InstallCalledOff(1) {
			w.Fatalf("wanted is %+v, called off %+v", r.InstallRequest, r.InstallCancel)
		}
	}},
	// rule 7
	{"a step that has helped already does not begin anew when its call ends", func(w *world) {
		a := w.broken("c1")
		w.pulls(fleet.LeverReboot)
		work := w.claimOne(w.sessionFor("recoverer", time.Hour), fleet.ProcessRecovery)
		w.must(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		taken := w.record(a.Machine).Repair
		w.shift.Advance(2 * time.Minute)
		w.must(w.db.RecordSpoken(w.ctx, a, "boot2"))
		w.must(work.Finish(w.ctx, bmdb.StepDone(fleet.RungReboot)))
		if r := w.record(a.Machine).Repair; r == nil || !r.At.Equal(taken.At) {
			w.Fatalf("taken %+v, done %+v", taken, r)
		}
		w.wantNumber(1, "SELECT count(*) FROM recovery_restart b JOIN repair r ON r.machine = b.machine AND r.at = b.at")
	}},
}
