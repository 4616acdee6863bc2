package bmdbtest

import (
	"context"
	"strings"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

var planStopTests = []test{
	{"a confirmation that is cut off says how far it is, and why", func(w *world) {
		w.levered()
		ids := w.machines(nil, "c1", "c2", "c3")
		p := w.planned(fleet.VerbReboot, ids...)
		ctx, cut := context.WithCancelCause(w.ctx)
		defer cut(nil)
		w.after = map[string]func(){"carry out plan": func() { cut(fleet.Errorf(fleet.KindTemporary, "it is being stopped")) }}
		_, err := w.db.ConfirmPlan(ctx, actor, p.ID)
		w.wantKind(err, fleet.KindTemporary)
		if told := err.Error(); !strings.Contains(told, " was carried out for 1 of 3 machines; confirm it again to go on: ") ||
			!strings.HasSuffix(told, "it is being stopped") {
			w.Fatalf("it says: %s", told)
		}
		if done := w.confirmed(p.ID); outcomes(done) != "done done done" {
			w.Fatalf("gone on with: %+v", done.Outcomes)
		}
	}},
	{"a plan that a newer version has narrowed is not carried out", func(w *world) { // rule 8
		w.levered()
		id := w.machine("c1")
		for _, newer := range []string{`{"least":"3",`, `{"install":{"RootDisk":{"slot":"7"}},`, `{"selector":{"racks":["4"]},`} {
			p := w.planned(fleet.VerbReboot, id)
			w.exec("UPDATE plan SET machines = $1 || substr(machines, 2) WHERE id = $2", newer, p.ID)
			_, err := w.db.ConfirmPlan(w.ctx, actor, p.ID)
			w.wantKind(err, fleet.KindUnsupported)
			if !strings.HasPrefix(err.Error(), "plan "+p.ID+" cannot be read (a newer control plane may have made it): confirm it there, or make it anew: ") ||
				w.record(id).Operation != nil {
				w.Errorf("%s: %v, operation %+v", newer, err, w.record(id).Operation)
			}
		}
	}},
	{"a machine that is not created yet is not kept away by a quarantine, and that is said", func(w *world) {
		created := w.machine("c1")
		wanted := newIntents("c2")
		id, reason := wanted[0].Machine, "the wrong rack"
		refused := func(err error, more string) {
			w.Helper()
			w.wantKind(err, fleet.KindConflict)
			says := " is not created yet: `ironherd provider pause p1 --reason WHY` keeps it from being created" + more
			if !strings.HasSuffix(err.Error(), says) {
				w.Errorf("got %q, want %q", err, says)
			}
		}
		w.provisioning(func(work *bmdb.Work) {
			var opened []fleet.Intent
			w.must(work.Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened)))
			_, err := w.db.CreatePlan(w.ctx, actor, bmdb.PlanRequest{Verb: fleet.VerbQuarantine, Machines: []fleet.MachineID{id}, Reason: reason})
			refused(err, "")
			refused(Quarantine(w.ctx, w.db, actor, id, reason), "")
			if both := w.planned(fleet.VerbQuarantine, created, id); both.Machines[0].Refused != "" || both.Machines[1].Refused == "" {
				w.Errorf("planned: %+v", both.Machines)
			}
			w.must(work.Note(w.ctx, bmdb.IntentCalled(id)))
			refused(Quarantine(w.ctx, w.db, actor, id, reason), ", unless p1 creates it for the call that was made already")
			w.must(work.Note(w.ctx, bmdb.CloseIntentProvided(id, "id-c2", providedAs(fleet.ProviderStatusActive, "c2"))))
		})
		w.must(Quarantine(w.ctx, w.db, actor, id, reason))
	}},
}
