package bmdbtest

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// handOut wants an order.
func (w *world) handOut(a bmdb.AgentIdentity, generation fleet.InstallGeneration, attempt int) *bmdb.InstallOrder {
	w.Helper()
	o, err := w.db.HandOutInstall(w.ctx, a, generation, attempt)
	w.must(err)
	return o
}

// expired lets the time of the open attempt pass, and returns the record of after that.
func (w *world) expired(a bmdb.AgentIdentity) fleet.Record {
	w.Helper()
	w.shift.Advance(fleet.DefaultPolicy().ReportWithin() + time.Second)
	if n, err := w.db.ExpireInstalls(w.ctx, 10); n != 1 || err != nil {
		w.Fatalf("expired %d, %v", n, err)
	}
	return w.record(a.Machine)
}

var installTests = []test{
	{"what failed before a system came up says nothing of the next reinstall", func(w *world) {
		a := w.ready("c1", true)
		w.pulls(fleet.LeverReboot, fleet.LeverPower)
		o := w.handOut(a, 0, 0)
		w.listening()
		w.must(w.db.HoldRecovery(w.ctx, actor, nil, "the network is worked at"))
		for range 3 { // the agent is not heard, and the host refuses the start of another one
			w.shift.Advance(2 * time.Hour)
			w.must(w.claimOne(w.session("initializer"), fleet.ProcessAgentStart).Fail(w.ctx,
				bmdb.Failure{Cause: "it refuses our key", Backoff: hours, Answer: fleet.AnswerRefused}))
		}
		w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, o.Secret, "boot2")))
		w.shift.Advance(10 * time.Second)
		_, err := w.db.RequestInstall(w.ctx, actor, a.Machine, fleet.InstallRequest{Image: image}, true)
		w.must(err)
		d, err := w.db.MachineDetails(w.ctx, a.Machine)
		w.must(err)
		if start := lifecycle.Decide(d.Record, d.Environment, d.Now).For(fleet.ProcessAgentStart); start.Verdict != lifecycle.Due || lifecycle.RefusesUs(d.Record, d.Environment, d.Now) {
			w.Fatalf("an agent is started %s: %s", start.DueAt, start.Reason)
		}
	}},
	{"from the request to the installed system", func(w *world) {
		a := w.ready("c1", true)
		o := w.handOut(a, 0, 0)
		if o == nil || o.Attempt != 1 || o.Request.Generation != 1 || string(o.Request.FirstBootData) != "hello" || len(o.Secret) != 32 ||
			o.Timeout != fleet.DefaultPolicy().InstallTimeout || o.Request.Image != image {
			w.Fatalf("order %+v", o)
		}
		if again := w.handOut(a, 1, 1); again != nil { // I9
			w.Fatalf("handed out again: %+v", again)
		}
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true, Disk: "/dev/sda", Bytes: 5}))
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true}))
		if w.state(a.Machine) != fleet.StateBooting {
			w.Fatalf("state %s", w.state(a.Machine))
		}
		if w.record(a.Machine).InstallReport.Disk != "/dev/sda" {
			w.Fatal("a repeated report replaced the first")
		}
		for _, bad := range []struct {
			machine fleet.MachineID
			g       fleet.InstallGeneration
			attempt int
			secret  []byte
		}{{a.Machine, 1, 1, []byte("guess")}, {a.Machine, 1, 2, o.Secret}, {a.Machine, 2, 1, o.Secret}, {fleet.NewMachineID(), 1, 1, o.Secret}} {
			w.wantKind(errorOf(w.db.RecordInstalled(w.ctx, bad.machine, bad.g, bad.attempt, bad.secret, "boot9")), fleet.KindForbidden)
		}
		for range 2 {
			again, err := w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, o.Secret, "boot9")
			w.must(err)
			if again != 0 {
				w.Fatalf("a system that nobody watches is to call again after %s", again)
			}
		}
		if w.state(a.Machine) != fleet.StateInstalled {
			w.Fatalf("state %s", w.state(a.Machine))
		}
		w.wantEvents(a.Machine, "install handed out", "disk written", "installed")
		phases, err := w.db.Phases(w.ctx)
		w.must(err)
		for _, p := range phases {
			if p.Count != 1 {
				w.Fatalf("phase %+v", p)
			}
		}
		if o := w.handOut(a, 1, 1); o != nil {
			w.Fatalf("an installed machine got an order: %+v", o)
		}
	}},
	{"an answer that was lost is closed, and never handed out twice", func(w *world) { // I9
		a := w.ready("c1", true)
		first := w.handOut(a, 0, 0)
		second := w.handOut(a, 0, 0) // the agent knows of none
		if second == nil || second.Attempt != first.Attempt+1 || string(second.Secret) == string(first.Secret) {
			w.Fatalf("orders %+v, %+v", first, second)
		}
		r := w.record(a.Machine)
		if r.InstallReport == nil || r.InstallReport.Attempt != 1 || r.InstallReport.OK || len(r.Backoffs) != 0 || !r.InstallReport.Untouched() {
			w.Fatalf("record %+v", r)
		}
		w.wantHappenedOnce(bmdb.HappeningInstallFailed, bmdb.FailedNeverStarted)
		w.wantKind(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, first.Secret, "b")), fleet.KindForbidden)
		// history
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true}))
		if w.record(a.Machine).InstallReport.OK {
			w.Fatal("a report of a closed attempt counted")
		}
	}},
	{"the failure of a superseded install makes the newer one wait for nothing", func(w *world) {
		a := w.ready("c1", true)
		w.handOut(a, 0, 0)
		_, err := w.db.RequestInstall(w.ctx, "ada", a.Machine, fleet.InstallRequest{Image: image}, false)
		w.must(err)
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, Error: "cancelled by a newer request"}))
		if o := w.handOut(a, 1, 1); o == nil || o.Request.Generation != 2 || o.Attempt != 1 {
			w.Fatalf("order %+v, backoffs %v", o, w.record(a.Machine).Backoffs)
		}
	}},
	{"an agent is told to end what a newer install makes needless", func(w *world) {
		a := w.ready("c1", true)
		w.handOut(a, 0, 0)
		unwanted := func(generation fleet.InstallGeneration, want bool) {
			w.Helper()
			if off, err := w.db.InstallUnwanted(w.ctx, a.Machine, generation); err != nil || off != want {
				w.Fatalf("generation %d is unwanted: %t, %v", generation, off, err)
			}
		}
		unwanted(1, false)
		_, err := w.db.RequestInstall(w.ctx, "ada", a.Machine, fleet.InstallRequest{Image: image}, false)
		w.must(err)
		unwanted(1, true)
		unwanted(2, false)
		if o := w.handOut(a, 1, 1); o != nil {
			w.Fatalf("beside the other one: %+v", o)
		}
		// Nor does the newer one wait when nothing is heard of the older.
		w.shift.Advance(fleet.DefaultPolicy().ReportWithin() + time.Second)
		if n, err := w.db.ExpireInstalls(w.ctx, 10); n != 1 || err != nil {
			w.Fatalf("expired %d, %v", n, err)
		}
		unwanted(1, true) // its agent may be at work still
		if o := w.handOut(a, 1, 1); o == nil || o.Request.Generation != 2 {
			w.Fatalf("order %+v, backoffs %v", o, w.record(a.Machine).Backoffs)
		}
	}},
	{"an agent that has started a later install is known by an older copy of the database", func(w *world) {
		a := w.ready("c1", true)
		w.handOut(a, 0, 0)
		if o := w.handOut(a, 1, 3); o == nil || o.Attempt != 4 {
			w.Fatalf("after attempt 3 of the agent: %+v", o)
		}
		if o := w.handOut(a, 5, 2); o != nil {
			w.Fatalf("order %+v", o)
		}
		if r := w.record(a.Machine).InstallReport; w.state(a.Machine) != fleet.StateRefused || r.HeldGeneration != 5 || r.HeldAttempt != 2 {
			w.Fatalf("%s: report %+v", w.state(a.Machine), r)
		}
		if o := w.handOut(a, 5, 2); o != nil {
			w.Fatalf("again: %+v", o)
		}
		generation, err := w.db.RequestInstall(w.ctx, "ada", a.Machine, fleet.InstallRequest{Image: image}, true)
		w.must(err)
		if o := w.handOut(a, 5, 2); generation != 6 || o == nil || o.Request.Generation != 6 {
			w.Fatalf("generation %d, order %+v", generation, o)
		}
	}},
	{"what an agent says it has started leaves room to count on", func(w *world) {
		a := w.ready("c1", true)
		w.handOut(a, 0, 0)
		if o := w.handOut(a, 1, math.MaxInt32); o == nil || o.Attempt <= 0 || o.Attempt >= math.MaxInt32 {
			w.Fatalf("order %+v", o)
		}
		for want := fleet.MaxInstallGeneration + 1; want < fleet.MaxInstallGeneration+3; want++ {
			w.handOut(a, math.MaxInt64, math.MaxInt32)
			if r := w.record(a.Machine).InstallReport; w.state(a.Machine) != fleet.StateRefused || r.HeldGeneration != fleet.MaxInstallGeneration {
				w.Fatalf("%s: report %+v", w.state(a.Machine), r)
			}
			generation, err := w.db.RequestInstall(w.ctx, "ada", a.Machine, fleet.InstallRequest{Image: image}, true)
			w.must(err)
			if o := w.handOut(a, math.MaxInt64, math.MaxInt32); generation != want || o == nil || o.Request.Generation != want || o.Attempt != 1 {
				w.Fatalf("generation %d, order %+v", generation, o)
			}
		}
	}},
	{"the reply of the database itself is lost", func(w *world) {
		a := w.ready("c1", true)
		w.faults.LoseReply()
		if o, err := w.db.HandOutInstall(w.ctx, a, 0, 0); err == nil || o != nil {
			w.Fatalf("got %+v, %v", o, err)
		}
		if o := w.handOut(a, 0, 0); o == nil || o.Attempt != 2 {
			w.Fatalf("order %+v", o)
		}
	}},
	{"a failed attempt backs off and is tried again", func(w *world) {
		a := w.ready("c1", true)
		o := w.handOut(a, 0, 0)
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: o.Attempt, Error: "digest mismatch"}))
		w.wantHappenedOnce(bmdb.HappeningInstallFailed, bmdb.FailedReported)
		if again := w.handOut(a, 1, 1); again != nil {
			w.Fatal("handed out in backoff")
		}
		b := w.record(a.Machine).Backoffs[fleet.ProcessInstall]
		if b.Cause != "digest mismatch" || b.Interval != fleet.DefaultPolicy().InstallRetry.Initial {
			w.Fatalf("backoff %+v", b)
		}
		w.shift.Advance(b.Interval + time.Second)
		if o = w.handOut(a, 1, 1); o == nil || o.Attempt != 2 {
			w.Fatalf("order %+v", o)
		}
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 2, OK: true}))
		if len(w.record(a.Machine).Backoffs) != 0 {
			w.Fatal("a success left the backoff")
		}
		w.wantEvents(a.Machine, "install handed out", "install failed", "install handed out", "disk written")
	}},
	{"what fails again and again is counted while it is wanted", func(w *world) {
		failing := func(when string, want int) {
			w.Helper()
			if n, err := w.db.CountFailingInstalls(w.ctx); n != want || err != nil {
				w.Fatalf("%s: %d fail, want %d: %v", when, n, want, err)
			}
		}
		a, attempt := w.ready("c1", true), 0
		for range bmdb.InstallFailing {
			failing("before the last failure", 0)
			w.shift.Advance(time.Hour)
			attempt = w.handOut(a, 1, attempt).Attempt
			w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: attempt, Error: "digest mismatch"}))
		}
		failing("all have failed", 1)
		w.shift.Advance(time.Hour)
		attempt = w.handOut(a, 1, attempt).Attempt
		failing("it is tried once more", 1)
		w.must(Quarantine(w.ctx, w.db, actor, a.Machine, "a bad disk"))
		failing("somebody has put it aside", 0)
		w.must(Unquarantine(w.ctx, w.db, actor, a.Machine, "another disk"))
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: attempt, OK: true}))
		failing("it has succeeded", 0)
	}},
	{"an attempt whose agent is gone may have written", func(w *world) {
		a := w.ready("c1", true)
		w.handOut(a, 0, 0)
		handedOut, err := CancelInstall(w.ctx, w.db, actor, a.Machine, "the wrong image")
		if err != nil || !handedOut {
			w.Fatalf("handed out %t, %v", handedOut, err)
		}
		w.must(w.db.ListenerAlive(w.ctx, 1000*time.Hour, 30*time.Second))
		w.shift.Advance(time.Hour)
		next := w.startAgentAs(a.Machine, "boot2")
		w.must(w.db.RecordSpoken(w.ctx, next, "boot2"))
		w.must(w.db.RecordHardware(w.ctx, next, []byte("report"), nil))
		if o := w.handOut(next, 0, 0); o != nil { // it knows of none
			w.Fatalf("order %+v", o)
		}
		r := w.record(a.Machine)
		if r.InstallReport == nil || r.InstallReport.Untouched() || len(r.Backoffs) != 0 {
			w.Fatalf("report %+v, backoffs %v", r.InstallReport, r.Backoffs)
		}
		m, err := w.db.MachineDetails(w.ctx, a.Machine)
		w.must(err)
		if plan := lifecycle.Decide(m.Record, m.Environment, m.Now); plan.State != fleet.StateAvailable || !strings.Contains(plan.Reason, "what the disk holds is undefined") {
			w.Fatalf("%s: %s", plan.State, plan.Reason)
		}
	}},
	{"an attempt without a report runs out of time; its success still counts", func(w *world) {
		a := w.ready("c1", true)
		o := w.handOut(a, 0, 0)
		// The agent counts from when it begins, and waits for a disk that does not answer.
		w.shift.Advance(o.Timeout + 4*time.Minute)
		if n, err := w.db.ExpireInstalls(w.ctx, 10); n != 0 || err != nil {
			w.Fatalf("expired %d, %v", n, err)
		}
		w.shift.Advance(time.Minute + time.Second)
		if n, err := w.db.ExpireInstalls(w.ctx, 10); n != 1 || err != nil {
			w.Fatalf("expired %d, %v", n, err)
		}
		w.wantHappenedOnce(bmdb.HappeningInstallFailed, bmdb.FailedNoReport)
		if r := w.record(a.Machine); r.InstallReport == nil || r.InstallReport.OK || len(r.Backoffs) != 1 || r.InstallReport.Untouched() {
			w.Fatalf("record %+v", r)
		}
		if n, err := w.db.ExpireInstalls(w.ctx, 10); n != 0 || err != nil {
			w.Fatalf("expired %d again, %v", n, err)
		}
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true}))
		w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, o.Secret, "b")))
		if w.state(a.Machine) != fleet.StateInstalled {
			w.Fatalf("state %s", w.state(a.Machine))
		}
	}},
	{"what an agent says late of an attempt outdoes what was concluded", func(w *world) { // I5, I9
		a := w.ready("c1", true)
		w.handOut(a, 0, 0)
		concluded := w.expired(a)
		late := fleet.InstallReport{Generation: 1, Attempt: 1, Error: "waiting for the image server: connection refused"}
		for _, r := range []fleet.InstallReport{late, late, {Generation: 1, Attempt: 1, Error: "in other words"}} {
			w.must(w.db.RecordInstallReport(w.ctx, a, r))
		}
		r := w.record(a.Machine)
		if r.InstallReport.Error != late.Error || !r.InstallReport.Untouched() {
			w.Fatalf("report %+v", r.InstallReport)
		}
		want := concluded.Backoffs[fleet.ProcessInstall]
		want.Cause = late.Error
		if got := r.Backoffs[fleet.ProcessInstall]; got != want {
			w.Fatalf("backoff %+v, want %+v", got, want)
		}
		if rows, err := w.db.ListMachines(w.ctx, bmdb.MachineFilter{}); err != nil || !strings.Contains(rows[0].Reason, late.Error) {
			w.Fatalf("listed %+v, %v", rows, err)
		}
		if n := w.count(a.Machine, fleet.EventInstallFailed); n != 2 {
			w.Fatalf("%d failures in history", n)
		}
		w.wantHappenedOnce(bmdb.HappeningInstallFailed, bmdb.FailedNoReport)
		if n := w.happened[string(bmdb.HappeningInstallFailed)+": "+bmdb.FailedReported]; n != 0 {
			w.Fatalf("one attempt is counted as failed %d times", 1+n)
		}
	}},
	{"what an agent says late is not believed of the attempts before", func(w *world) {
		a := w.ready("c1", true)
		w.handOut(a, 0, 0)
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, Error: "it hangs", Disk: "/dev/sda"}))
		w.shift.Advance(time.Hour)
		w.handOut(a, 1, 1)
		w.expired(a)
		for range 2 {
			w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 2, Error: "no such image"}))
		}
		if r := w.record(a.Machine).InstallReport; r.Error != "no such image" || r.Untouched() || w.count(a.Machine, fleet.EventInstallFailed) != 3 {
			w.Fatalf("report %+v, history %q", r, w.events(a.Machine))
		}
	}},
	// I9
	{"what an agent says late of an attempt that a newer one has followed counts no more", func(w *world) {
		a := w.ready("c1", true)
		w.handOut(a, 0, 0)
		was := w.expired(a).InstallReport
		w.shift.Advance(time.Hour)
		if o := w.handOut(a, 1, 1); o == nil || o.Attempt != 2 {
			w.Fatalf("order %+v", o)
		}
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, Error: "no such image"}))
		if r := w.record(a.Machine); *r.InstallReport != *was || r.InstallAttempt.Attempt != 2 || w.handOut(a, 1, 2) != nil {
			w.Fatalf("report %+v, attempt %+v", r.InstallReport, r.InstallAttempt)
		}
	}},
	{"a refusal that an agent tells late counts", func(w *world) {
		a := w.ready("c1", true)
		w.handOut(a, 0, 0)
		w.expired(a)
		for range 2 {
			w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, Error: "it holds another", HeldGeneration: 4, HeldAttempt: 1}))
		}
		if r := w.record(a.Machine); w.state(a.Machine) != fleet.StateRefused || len(r.Backoffs) != 0 || w.count(a.Machine, fleet.EventInstallFailed) != 2 {
			w.Fatalf("%s, report %+v, backoffs %v", w.state(a.Machine), r.InstallReport, r.Backoffs)
		}
	}},
	// rule 8
	{"what an agent says late does not undo that a person has marked the machine", func(w *world) {
		w.listening()
		a := w.ready("c1", true)
		w.handOut(a, 0, 0)
		w.shift.Advance(time.Hour)
		w.mark(a.Machine)
		was := w.record(a.Machine)
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, Error: "no such image", Disk: "/dev/sda"}))
		if r := w.record(a.Machine); *r.InstallReport != *was.InstallReport || len(r.Backoffs) != 0 || w.state(a.Machine) != fleet.StateInstalled {
			w.Fatalf("%s, report %+v, backoffs %v", w.state(a.Machine), r.InstallReport, r.Backoffs)
		}
	}},
	{"a system that comes up before its report is installed and stays so", func(w *world) {
		a := w.ready("c1", true)
		o := w.handOut(a, 0, 0)
		w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, o.Secret, "b")))
		w.shift.Advance(fleet.DefaultPolicy().ReportWithin() + time.Second)
		if n, err := w.db.ExpireInstalls(w.ctx, 10); n != 0 || err != nil {
			w.Fatalf("expired %d, %v", n, err)
		}
		if w.state(a.Machine) != fleet.StateInstalled || w.record(a.Machine).InstallReport != nil {
			w.Fatalf("state %s", w.state(a.Machine))
		}
	}},
	{"what was never handed out is not reported", func(w *world) {
		a := w.ready("c1", true)
		w.wantKind(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true}), fleet.KindConflict)
	}},
	{"an install that a newer version has narrowed is not handed out", func(w *world) { // rule 8
		for n, c := range []struct{ column, newer, says string }{
			{"image", `{"url":"http://h/i","digest":"","compression":"","boot":"uefi"}`, "unknown field"},
			{"image", `{"url":"http://h/i","digest":"","compression":"lz9"}`, `"lz9" says nothing to this version`},
			{"image", `{"url":"http://h/i","digest":"","compression":"","first_boot":"ignition"}`, `"ignition" says nothing to this version`},
			{"image", `{"url":"http://h/i","digest":"","compression":"","architecture":"riscv64"}`, `"riscv64" says nothing to this version`},
			{"root_disk", `{"min_size":5,"slot":"7"}`, "unknown field"},
			{"root_disk", `{"min_size":5,"pick":"newest"}`, `"newest" says nothing to this version`},
			{"seen_up", `{"within":"1h"}`, "unknown field"},
			{"seen_up", `{"by":"ping"}`, `"ping" says nothing to this version`},
		} {
			column, newer := c.column, c.newer
			a := w.ready(fleet.CapacityID(fmt.Sprintf("c%d", n)), true)
			w.exec("UPDATE install_request SET "+column+" = $1 WHERE machine = $2", newer, string(a.Machine))
			if o := w.handOut(a, 0, 0); o != nil {
				w.Errorf("%s: handed out: %+v", column, o.Request)
			}
			if r := w.record(a.Machine); !strings.Contains(r.Unreadable, c.says) || column == "root_disk" && r.InstallRequest.RootDisk.MinSize != 5 {
				w.Errorf("%s: unreadable: %q, and read is %+v", column, r.Unreadable, r.InstallRequest)
			}
			// what is asked for anew has nothing that is not known
			asked := fleet.InstallRequest{Image: image, FirstBootData: []byte("hello")}
			if column == "root_disk" {
				asked.RootDisk.MinSize = 5 // the same, but for what cannot be read
			}
			w.must(errorOf2(w.db.RequestInstall(w.ctx, actor, a.Machine, asked, false)))
			if o := w.handOut(a, 0, 0); o == nil || o.Request.Generation != 2 {
				w.Errorf("%s: handed out: %+v, want install generation 2", column, o)
			}
		}
	}},
	{"no order while nothing is wanted or known", func(w *world) {
		a := w.startAgent(w.wantsInstall("c1"))
		if o := w.handOut(a, 0, 0); o != nil {
			w.Fatal("an order before the first heartbeat")
		}
		w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
		if o := w.handOut(a, 0, 0); o != nil {
			w.Fatal("an order before the hardware is known")
		}
		b := w.ready("c2", false)
		if o := w.handOut(b, 0, 0); o != nil {
			w.Fatal("an order that nobody asked for")
		}
	}},
}

// errorOf leaves out when the system is to call again.
func errorOf(_ time.Duration, err error) error { return err }
