package bmdbtest

import (
	"fmt"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// missing checks which roles nobody has.
func (w *world) missing(want ...fleet.Role) {
	w.Helper()
	got, err := w.db.Missing(w.ctx)
	if w.must(err); fmt.Sprint(got) != fmt.Sprint(want) {
		w.Fatalf("missing are %v, want %v", got, want)
	}
}

// has starts a session of a role.
func (w *world) has(role fleet.Role) *bmdb.Session {
	w.Helper()
	return w.session(role.Component())
}

// judgeMissing checks whether nobody has a role.
func (w *world) judgeMissing(role fleet.Role, want bool) {
	w.Helper()
	all, err := w.db.Missing(w.ctx)
	if w.must(err); slices.Contains(all, role) != want {
		w.Fatalf("that nobody is the %s is %t, want %t", role, !want, want)
	}
}

var roleTests = []test{
	{"a role is missing when nobody had it for a minute", func(w *world) {
		all := fleet.Roles()[:8] // without the operator API
		w.missing()              // whoever starts together with this process needs a moment
		w.shift.Advance(time.Minute)
		w.missing(all...)
		for _, role := range all {
			if role != fleet.RoleAgentAPI {
				w.has(role)
			}
		}
		w.missing(fleet.RoleAgentAPI)
		w.listening()
		w.missing()
		// killed: until the deadline, and as long as a restart takes
		w.shift.Advance(interval + time.Minute - margin)
		w.missing()
		w.shift.Advance(2 * margin)
		w.missing(all[:7]...)
	}},
	{"a role whose control plane stops is missing a minute later", func(w *world) {
		w.shift.Advance(time.Hour)
		s := w.has(fleet.RoleJanitor)
		w.must(s.Close(w.ctx, "its process stops"))
		w.shift.Advance(time.Minute - margin)
		w.judgeMissing(fleet.RoleJanitor, false)
		heir := w.has(fleet.RoleJanitor) // a restart
		w.shift.Advance(2 * margin)
		w.judgeMissing(fleet.RoleJanitor, false)
		w.must(heir.Close(w.ctx, "its process stops"))
		w.shift.Advance(time.Minute + margin)
		w.judgeMissing(fleet.RoleJanitor, true)
	}},
	{"a session that is ended late counts until its deadline", func(w *world) {
		w.shift.Advance(time.Hour)
		w.has(fleet.RoleRecoverer)
		w.shift.Advance(time.Hour)
		_, err := w.db.CollectSessions(w.ctx)
		w.must(err)
		w.judgeMissing(fleet.RoleRecoverer, true)
	}},
	{"the summary names a role that is missing when it has something to do", func(w *world) {
		named := func(want ...fleet.Role) {
			w.Helper()
			s, err := w.db.Summary(w.ctx)
			if w.must(err); fmt.Sprint(s.Missing) != fmt.Sprint(want) {
				w.Fatalf("the summary names %v, want %v", s.Missing, want)
			}
		}
		w.shift.Advance(time.Hour)
		named(fleet.RoleProvisioner, fleet.RoleUpdater, fleet.RoleJanitor)
		w.machines(nil, "c1")
		named(fleet.RoleProvisioner, fleet.RoleInitializer, fleet.RoleUpdater, fleet.RoleJanitor)
		w.has(fleet.RoleProvisioner)
		w.has(fleet.RoleInitializer)
		w.has(fleet.RoleUpdater)
		w.has(fleet.RoleJanitor)
		named()
	}},
	{"what explains a machine knows which roles are missing", func(w *world) {
		id := w.machines(nil, "c1")[0]
		w.shift.Advance(time.Hour)
		w.has(fleet.RoleInitializer)
		d, err := w.db.MachineDetails(w.ctx, id)
		w.must(err)
		if got := fmt.Sprint(d.Environment.Missing); got != "[provisioner updater recoverer operations prober janitor agent-api]" {
			w.Fatalf("missing are %s", got)
		}
	}},
}
