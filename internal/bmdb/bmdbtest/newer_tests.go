package bmdbtest

import (
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// newerTests are about rows that another version has written: what this one does not know stays as
// it is.
var newerTests = []test{
	// rule 8
	{"a system that comes up is recorded by a version that knows all that was asked for", func(w *world) {
		a, o := w.unseen(fleet.SeenUp{Watch: true})
		up := func() error { return errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, o.Secret, "boot9")) }
		w.exec("UPDATE install_request SET seen_up = $1 WHERE machine = $2", `{"watch":true,"twice":true}`, string(a.Machine))
		w.wantKind(up(), fleet.KindTemporary)
		w.wantKind(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, []byte("another"), "boot9")), fleet.KindForbidden)
		if r := w.record(a.Machine); r.Installed != nil || r.Unreadable == "" {
			w.Fatalf("installed %+v, unreadable %q", r.Installed, r.Unreadable)
		}
		w.exec("UPDATE install_request SET seen_up = $1 WHERE machine = $2", `{"watch":true}`, string(a.Machine))
		w.must(up())
		if i := w.record(a.Machine).Installed; i == nil || !i.SeenUp.Watch {
			w.Fatalf("installed %+v", i)
		}
	}},
	// rule 8
	{"an operation that this version does not know is left to another one", func(w *world) {
		w.pulls(fleet.LeverReboot)
		id := w.machine("c1")
		n, err := Operate(w.ctx, w.db, actor, id, fleet.OperationReboot, "new firmware")
		w.must(err)
		w.exec("UPDATE operation_request SET operation = 'defrost' WHERE machine = $1", string(id))
		if r := w.record(id); r.OpenOperation() == nil || !strings.Contains(r.Unreadable, `"defrost" says nothing to this version`) {
			w.Fatalf("operation %+v, unreadable %q", r.OpenOperation(), r.Unreadable)
		}
		if works := w.claim(w.lasting("operations"), fleet.ProcessOperation, 1); len(works) != 0 {
			w.Fatalf("claimed %d", len(works))
		}
		w.exec("INSERT INTO operation_report (machine, number, at, ok, detail) VALUES ($1, $2, 1, 1, 'done')", string(id), n)
		if r := w.record(id); r.Unreadable != "" {
			w.Fatalf("what is over matters still: %s", r.Unreadable)
		}
		w.must(errorOf2(Operate(w.ctx, w.db, actor, id, fleet.OperationReboot, "again")))
	}},
	// I9
	{"a reinstall that the provider began before a system came up says nothing of that system", func(w *world) {
		id := w.installedMachine("c1").Machine
		at := w.record(id).Installed.At
		for _, c := range []struct {
			erased time.Time
			counts bool
		}{{at.Add(-time.Hour), false}, {at, false}, {at.Add(time.Microsecond), true}} {
			w.exec("UPDATE installed SET erased_at = $1 WHERE machine = $2", c.erased.UnixMicro(), string(id))
			if e := w.record(id).Installed.ErasedAt; (e != nil) != c.counts {
				w.Errorf("erased %s after it came up: %v", c.erased.Sub(at), e)
			}
		}
		w.exec("UPDATE installed SET erased_at = $1 WHERE machine = $2", at.UnixMicro(), string(id))
		w.reinstalledElsewhere(id)
		if e := w.record(id).Installed.ErasedAt; e == nil || !e.After(at) {
			w.Errorf("erased after it came up: %v", e)
		}
	}},
}
