package bmdbtest

import (
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	projectA = "7b1d6e0a-5f2c-4c7e-9a51-0c8f4a6f7d11"
	projectB = "6c0b9a5e-3d4f-4f0b-9d57-2f8f4a1c7e10"
)

// starts is what a start with that project in the configuration does first.
func (w *world) starts(source string) error {
	w.Helper()
	w.must(w.db.RegisterProvider(w.ctx, provider, "test", 0))
	checked := w.db.CheckProvider(w.ctx, provider, "test", source)
	err := w.db.SetSource(w.ctx, provider, source)
	if fleet.KindOf(checked) != fleet.KindOf(err) {
		w.Fatalf("the check says %v, and the start %v", checked, err)
	}
	return err
}

func (w *world) refusesSource(source, want string) {
	w.Helper()
	err := w.starts(source)
	if w.wantKind(err, fleet.KindConflict); !strings.HasPrefix(err.Error(), want) {
		w.Fatalf("refused with %q, want %q", err, want)
	}
}

var sourceTests = []test{
	{"a provider keeps its project while it has machines", func(w *world) {
		w.must(w.starts(projectA))
		w.must(w.starts(projectB)) // nothing is in the other one
		w.must(w.starts(projectA))
		w.machines(nil, "c1", "c2")
		w.must(w.starts(projectA))
		w.must(w.starts("")) // by who does not say, and it changes nothing
		w.refusesSource(projectB, "provider p1 has machines of project "+projectA+" (2, with those that are being created), and the configuration has project "+projectB)
		w.must(w.starts(projectA)) // a start that was refused has recorded nothing
		w.wantKind(w.db.SetSource(w.ctx, "nobody", projectA), fleet.KindNotFound)
		w.must(w.db.CheckProvider(w.ctx, "nobody", "test", projectA))
		w.wantKind(w.db.CheckProvider(w.ctx, provider, "other", projectA), fleet.KindConflict)
	}},
	{"the machines of a provider from before its project was recorded are of the first that is", func(w *world) {
		w.machine("c1")
		w.must(w.starts(projectA))
		w.refusesSource(projectB, "provider p1 has machines of project "+projectA+" (1,")
	}},
	{"a creation that is open is of its project, which is given up as the refusal says", func(w *world) {
		w.must(w.starts(projectA))
		var opened []fleet.Intent
		w.provisioning(func(work *bmdb.Work) {
			w.must(work.Note(w.ctx, bmdb.OpenIntents(0, newIntents("c1"), &opened)))
			w.must(work.Note(w.ctx, bmdb.IntentCalled(opened[0].Machine)))
		})
		w.refusesSource(projectB, "provider p1 has machines of project "+projectA+" (1,")
		w.machine("c2")
		const remedy = "take provider p1 out of the configuration, then `ironherd machine forget --provider p1 --reason WHY` and " +
			"`ironherd provider forget p1 --reason WHY`"
		if err := w.starts(projectB); err == nil || !strings.Contains(err.Error(), remedy) {
			w.Fatalf("refused with %q, want %q", err, remedy)
		}
		w.shift.Advance(time.Hour)
		w.serves(fleet.RoleProvisioner) // by a control plane that does not have it in its configuration
		for _, m := range w.ofProvider() {
			w.must(Forget(w.ctx, w.db, actor, m, "sold"))
		}
		w.must(w.starts(projectB)) // none is left
		w.must(w.starts(projectA))
		w.must(w.db.ForgetProvider(w.ctx, actor, provider, "sold"))
		w.must(w.starts(projectB))
		w.machine("c3")
		w.refusesSource(projectA, "provider p1 has machines of project "+projectB+" (1,")
	}},
}

// ofProvider returns the machines of the provider, with those that are being created.
func (w *world) ofProvider() (ids []fleet.MachineID) {
	w.Helper()
	v, err := w.db.ViewProvider(w.ctx, provider)
	w.must(err)
	for _, m := range v.Machines {
		ids = append(ids, m.ID)
	}
	for _, i := range v.Intents {
		ids = append(ids, i.Machine)
	}
	return ids
}
