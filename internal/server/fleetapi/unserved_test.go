package fleetapi

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// TestAProviderThatLeavesTheConfiguration is one concern, and no work that is overdue; what is left
// of it can be removed.
func TestAProviderThatLeavesTheConfiguration(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, must := openBMDB(t)
		s := New(db, Options{Logger: discardLog})
		must(db.RegisterProvider(t.Context(), "metal", "equinix", 7))
		must(db.RegisterProvider(t.Context(), "rack", "static", 0))
		var sessions []*bmdb.Session
		for _, role := range fleet.Roles() {
			session, err := db.StartSession(t.Context(), bmdb.SessionOptions{
				Component: role.Component(), Lease: 10 * time.Hour, Providers: []fleet.ProviderName{"rack"},
			})
			must(err)
			sessions = append(sessions, session)
		}
		time.Sleep(time.Hour)
		// What is due at rack is being done.
		for _, process := range []fleet.Process{fleet.ProcessProvision, fleet.ProcessUpdate} {
			claim, err := sessions[0].Claim(t.Context(), bmdb.ClaimRequest{Process: process, Providers: []fleet.ProviderName{"rack"}, Limit: 1})
			if must(err); len(claim.Works) != 1 {
				t.Fatalf("claimed %v", claim)
			}
		}
		told := func() (all []string) {
			summary, err := db.Summary(t.Context())
			must(err)
			concerns, err := s.concerns(t.Context(), summary, providersOf(t, db))
			must(err)
			for _, c := range concerns {
				all = append(all, c.GetKind()+" "+c.GetSubject()+": "+c.GetText())
			}
			return all
		}
		want := "provider metal: no live control plane " +
			"serves provider metal: start the control plane that has it in its configuration, or put it back there (under its old name, where it was renamed); " +
			"where it is given up for good, `ironherd provider forget metal --reason WHY` removes it here"
		if got := strings.Join(told(), "\n"); got != want {
			t.Errorf("told is %s", got)
		}
		must(db.ForgetProvider(t.Context(), "ada", "metal", "sold"))
		if got := told(); len(got) > 0 {
			t.Errorf("left is %s", got)
		}
		for _, without := range []bool{false, true} {
			rows, err := s.history(t.Context(), &fleetv1.ListHistoryRequest{Provider: "metal", WithoutFinished: without}, 10)
			if must(err); len(rows) != 1 || rows[0].Event != fleet.EventForgotten {
				t.Errorf("its history is %v", rows)
			}
		}
		if _, err := s.history(t.Context(), &fleetv1.ListHistoryRequest{Provider: "nowhere"}, 10); fleet.KindOf(err) != fleet.KindNotFound {
			t.Errorf("the history of one that never was: %v", err)
		}
	})
}

// TestAMachineOfAnUnservedProvider is a person's turn as soon as something of it is to be done,
// whatever a person could ask for otherwise.
func TestAMachineOfAnUnservedProvider(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	end, active := now.Add(time.Hour), now.Add(-time.Minute)
	provided := fleet.Record{
		Machine:  fleet.Machine{ID: "m1", Provider: "metal", ProviderID: "d1", CreatedAt: now.Add(-time.Hour)},
		Provided: &fleet.Provided{At: now, Status: fleet.ProviderStatusActive, ActiveAt: &active},
		Levers:   []fleet.Lever{fleet.LeverPower},
	}
	for name, c := range map[string]struct {
		change   func(r *fleet.Record)
		unserved []fleet.Role
		want     string
	}{
		"served": {want: "ironherd"},
		"unserved": {
			unserved: []fleet.Role{fleet.RoleInitializer},
			want:     "operator: no live control plane that has the role initializer serves provider metal",
		},
		"unserved by who has nothing to do": {unserved: []fleet.Role{fleet.RoleProber}, want: "ironherd"},
		"a person's, who needs nobody": {
			change:   func(r *fleet.Record) { r.Quarantine = &fleet.Quarantine{At: now, Actor: "ada", Reason: "r"} },
			unserved: []fleet.Role{fleet.RoleOperations, fleet.RoleInitializer},
			want:     "operator: work comes back",
		},
		"failed, to be given back": {
			change: func(r *fleet.Record) {
				r.Provided.Status, r.Levers = fleet.ProviderStatusFailed, []fleet.Lever{fleet.LeverRelease}
			},
			unserved: []fleet.Role{fleet.RoleOperations},
			want:     "operator: no live control plane that has the role operations serves provider metal",
		},
		"in maintenance": {
			change:   func(r *fleet.Record) { r.Maintenance = &fleet.Maintenance{At: now, Until: &end, Actor: "ada"} },
			unserved: []fleet.Role{fleet.RoleOperations},
			want:     "operator: no live control plane that has the role operations serves provider metal",
		},
		"gone": {
			change:   func(r *fleet.Record) { r.Provided.Status = fleet.ProviderStatusGone },
			unserved: []fleet.Role{fleet.RoleInitializer, fleet.RoleOperations, fleet.RoleUpdater},
			want:     "operator: the machine is removed here",
		},
	} {
		r := provided
		was := *provided.Provided
		r.Provided = &was
		if c.change != nil {
			c.change(&r)
		}
		env := fleet.Environment{Policy: fleet.DefaultPolicy(), ListenerUpSince: now.Add(-time.Hour), Explained: fleet.Explained{Unserved: c.unserved}}
		n := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}.nextStep()
		if got := n.GetWho() + ": " + n.GetWhat(); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
}
