package statement

import (
	"context"
	"database/sql"
)

// Figure is one figure of the summary: how many, of which name, and since when.
type Figure struct {
	Kind  FigureKind
	Name  string
	N     int64
	Since int64
}

// FigureKind says what a figure counts.
type FigureKind string

// The kinds, with what their names are.
const (
	FigureState   FigureKind = "state"   // machines, by state
	FigureRunning FigureKind = "running" // lanes that are held, by process
	// rows of the agenda, by process; since when the first one is
	FigureDue         FigureKind = "due"
	FigureBackingOff  FigureKind = "backing-off" // backoffs that are not over, by process
	FigureDiscrepancy FigureKind = "discrepancy" // without a name
)

// What is due is counted in the order of the index, so that the bound is one. Nothing here reads
// more rows than the bounds say, but for what is held, which has as many rows as there are works
// under way. A bound cannot be an argument: each column of the list is a list in PostgreSQL.
const summarize = `SELECT 'state' AS kind, state AS name, CAST(sum(n) AS BIGINT) AS n, CAST(0 AS BIGINT) AS since
FROM state_count GROUP BY state
UNION ALL
SELECT 'discrepancy', '', count(*), 0 FROM (SELECT kind FROM discrepancy LIMIT 10000) AS d
UNION ALL
SELECT 'running', process, count(*), 0 FROM lane WHERE session <> '' GROUP BY process
UNION ALL
SELECT 'backing-off', b.process, count(*), 0
FROM json_each($1) AS v CROSS JOIN (SELECT process, not_before FROM backoff LIMIT 10000) AS b
WHERE b.process = v.value ->> 0 AND b.not_before > CAST(v.value ->> 1 AS BIGINT) GROUP BY b.process
UNION ALL
SELECT 'due', v.value ->> 0,
  (SELECT count(*) FROM (
    SELECT due_at FROM agenda WHERE process = v.value ->> 0 AND due_at <= CAST(v.value ->> 1 AS BIGINT)
    ORDER BY due_at, subject LIMIT 10000) AS d),
  COALESCE((SELECT due_at FROM agenda WHERE process = v.value ->> 0 AND due_at <= CAST(v.value ->> 1 AS BIGINT)
    ORDER BY due_at, subject LIMIT 1), 0)
FROM json_each($1) AS v`

// FigureBound is how far is counted what is due, backing off, or a discrepancy.
const FigureBound = 10_000

// Summarize counts for rows (process, now), in one statement.
func (q *Queries) Summarize(ctx context.Context, rows Rows) (list []Figure, err error) {
	err = q.queryRows(ctx, summarize, rows, func(r *sql.Rows) error {
		var f Figure
		if err := r.Scan(fields(&f)...); err != nil {
			return err
		}
		list = append(list, f)
		return nil
	})
	return list, err
}

const oldestInStates = `SELECT v.value ->> 0, CAST(COALESCE((SELECT min(o.since) FROM (
  SELECT since FROM machine_state WHERE machine_state.provider = provider.name AND machine_state.state = v.value ->> 0
  ORDER BY machine LIMIT 1000) AS o), 0) AS BIGINT)
FROM provider CROSS JOIN json_each($1) AS v`

// OldestBound is among how many machines, of one state of one provider, the one that is in it for
// longest is looked for.
const OldestBound = 1000

// OldestInStates returns, for each of the rows (state) and each provider, since when the machine
// that is in that state for longest is: of the first so many in the order of their IDs. 0: none is.
func (q *Queries) OldestInStates(ctx context.Context, rows Rows) (list []Figure, err error) {
	err = q.queryRows(ctx, oldestInStates, rows, func(r *sql.Rows) error {
		f := Figure{Kind: FigureState}
		if err := r.Scan(&f.Name, &f.Since); err != nil {
			return err
		}
		list = append(list, f)
		return nil
	})
	return list, err
}
