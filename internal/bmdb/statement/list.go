package statement

import (
	"context"
	"database/sql"
	"strings"
)

// listMachines is ListMachine for many.
var listMachines = strings.NewReplacer("FROM machine m", "FROM (SELECT * FROM machine WHERE id IN (SELECT value ->> 0 FROM json_each($1))) AS m",
	"WHERE m.id = $1", "").Replace(listMachine)

// ListMachines is ListMachine for rows (id); it returns those that there are, in any order.
func (q *Queries) ListMachines(ctx context.Context, rows Rows) (list []ListMachineRow, err error) {
	err = q.queryRows(ctx, listMachines, rows, func(r *sql.Rows) error {
		var m ListMachineRow
		if err := r.Scan(fields(&m)...); err != nil {
			return err
		}
		list = append(list, m)
		return nil
	})
	return list, err
}

const listMachinesInStates = `SELECT s.machine FROM json_each($1) AS v CROSS JOIN LATERAL (
  SELECT machine FROM machine_state
  WHERE provider = v.value ->> 0 AND state = v.value ->> 1 AND machine > v.value ->> 2
  ORDER BY machine LIMIT CAST(v.value ->> 3 AS BIGINT)) AS s`

// ListMachinesInStates is ListMachinesInState for each of the rows (provider, state, after, how
// many), in any order.
func (q *Queries) ListMachinesInStates(ctx context.Context, rows Rows) (ids []string, err error) {
	each := func(r *sql.Rows) error {
		var id string
		if err := r.Scan(&id); err != nil {
			return err
		}
		ids = append(ids, id)
		return nil
	}
	if !q.oneByOne() {
		return ids, q.queryRows(ctx, listMachinesInStates, rows, each)
	}
	for _, row := range rows { // SQLite knows no LATERAL
		if err := q.queryEach(ctx, listMachinesInState, row, each); err != nil {
			return nil, err
		}
	}
	return ids, nil
}
