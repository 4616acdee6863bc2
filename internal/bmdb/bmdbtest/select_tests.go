package bmdbtest

import (
	"context"
	"strings"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

var selectTests = []test{
	{"a machine is found by what people call it", func(w *world) {
		ids := w.machines(nil, "c1", "c2", "c3")
		begins := string(ids[0][:30]) // as that of another machine is called
		w.provisioning(func(work *bmdb.Work) {
			r := w.record(ids[2])
			r.Provided.Hostname = begins
			w.must(work.Note(w.ctx, bmdb.SetProvided(ids[2], r.ProviderID, *r.Provided)))
		})
		for ref, want := range map[string]fleet.MachineID{
			string(ids[0]): ids[0], " " + string(ids[0]) + " ": ids[0], strings.ToUpper(string(ids[0])): ids[0], "host-c2": ids[1],
			"p1/id-c2": ids[1], string(ids[1][:35]): ids[1], begins: ids[2],
		} {
			if got, err := w.db.Resolve(w.ctx, ref); err != nil || got != want {
				w.Errorf("%q is %s, %v", ref, got, err)
			}
		}
		_, err := w.db.Resolve(w.ctx, string(ids[0][:8]))
		w.wantKind(err, fleet.KindConflict)
		for _, ref := range []string{"", "abc", "nohost", "p1/none", string(fleet.NewMachineID())} {
			_, err := w.db.Resolve(w.ctx, ref)
			w.wantKind(err, fleet.KindNotFound)
		}
	}},
	{"four characters of a machine's ID are too few to find it by", func(w *world) {
		id := w.machine("c1")
		if got, err := w.db.Resolve(w.ctx, string(id[:8])); err != nil || got != id {
			w.Errorf("eight find %s, %v", got, err)
		}
		_, err := w.db.Resolve(w.ctx, string(id[:7]))
		w.wantKind(err, fleet.KindNotFound)
	}},
	{"a label that nobody has is looked for in few statements", func(w *world) {
		const many = "WITH RECURSIVE m(n) AS (SELECT 100000 UNION ALL SELECT n + 1 FROM m WHERE n < 110000) "
		change := func(statements ...string) {
			w.must(w.faults.Engine.Update(w.ctx, func(ctx context.Context, tx bmdb.Tx) error {
				for _, s := range statements {
					if _, err := tx.ExecContext(ctx, s); err != nil {
						return err
					}
				}
				return nil
			}))
		}
		change(many+"INSERT INTO machine_state (machine, provider, state, reason, since, policy) SELECT 'm-' || n, '"+string(provider)+"', 'installed', '', 1, 1 FROM m",
			many+`INSERT INTO fact_provided (machine, provider, at, created_at, active_at, status, detail, hostname, address, location, capacity, host_keys, labels)
			SELECT 'm-' || n, '`+string(provider)+"', 1, 1, 1, 'active', '', '', '', 'rack', '', '', 'role=web' FROM m")
		if cost := w.cost("list machines", func() {
			rows, err := w.db.ListMachines(w.ctx, bmdb.MachineFilter{Labels: []fleet.LabelSelector{"role=database"}, Provider: provider, States: []fleet.State{fleet.StateInstalled}, Limit: 100})
			if w.must(err); len(rows) != 0 {
				w.Errorf("%d machines have it", len(rows))
			}
		}); cost > 8 {
			w.Errorf("to look through 10,000 machines took %d statements", cost)
		}
		change("DELETE FROM machine_state WHERE machine LIKE 'm-%'", "DELETE FROM fact_provided WHERE machine LIKE 'm-%'")
	}},
	// Rule 8.
	{"a machine that does not fit its selector any more when the plan is confirmed is skipped", func(w *world) {
		w.levered()
		id := w.machine("c1")
		put := func(location string, labels ...string) {
			w.provisioning(func(work *bmdb.Work) {
				r := w.record(id)
				fact := *r.Provided
				fact.Location, fact.Labels = location, labels
				w.must(work.Note(w.ctx, bmdb.SetProvided(id, r.ProviderID, fact)))
			})
		}
		planned := func(selector bmdb.MachineFilter) string {
			put("rack 4", "role=spare")
			p, err := w.db.CreatePlan(w.ctx, actor, bmdb.PlanRequest{
				Verb: fleet.VerbReboot, Machines: []fleet.MachineID{id}, Reason: "it is spare", Selector: selector,
			})
			w.must(err)
			return p.ID
		}
		label, location := bmdb.MachineFilter{Labels: []fleet.LabelSelector{"role=spare"}}, bmdb.MachineFilter{Locations: []string{"rack 4"}}
		for why, selector := range map[string]bmdb.MachineFilter{
			"machine host-c1 does not have the label role=spare now":           label,
			`machine host-c1 is in the location "rack 5" now, not in "rack 4"`: location,
		} {
			plan := planned(selector)
			put("rack 5", "role=database")
			if done := w.confirmed(plan); outcomes(done) != "skipped" || done.Outcomes[0].Detail != why || w.record(id).OpenOperation() != nil {
				w.Errorf("outcomes %+v, want it skipped: %s", done.Outcomes, why)
			}
			// One that fits it again is not left out for ever.
			put("rack 4", "role=spare")
			if again := w.confirmed(plan); outcomes(again) != "done" {
				w.Errorf("it fits again, and the outcomes are %+v", again.Outcomes)
			}
			w.must(Withdraw(w.ctx, w.db, actor, id, "enough"))
		}
		// What was done stays so, whatever the machine fits afterwards.
		plan := planned(label)
		w.confirmed(plan)
		put("rack 5", "role=database")
		if again := w.confirmed(plan); outcomes(again) != "done" {
			w.Errorf("it was done, and the outcomes are %+v", again.Outcomes)
		}
	}},
}
