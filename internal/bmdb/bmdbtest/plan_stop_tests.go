package bmdbtest

import (
	"context"
	"strings"

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
}
