package bmdbtest

import (
	"context"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

var selectTests = []test{
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
}
