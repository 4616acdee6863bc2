package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestTimesInStatesAreFoundByIndex: since when machines are in their states, and which are late, is
// found by an index, past all the others; the former whatever PostgreSQL knows of the table.
func TestTimesInStatesAreFoundByIndex(t *testing.T) {
	t.Parallel()
	p, url, _ := stocked(t, 1, postgres.Options{Silent: true})
	for i := range 3 {
		p.must(p.RegisterProvider(t.Context(), fleet.ProviderName(fmt.Sprintf("many%d", i)), "test", 0))
	}
	if n := query[int](t, url, `WITH made AS (
		INSERT INTO machine_state (machine, provider, state, reason, since, policy)
		SELECT 'm-' || n, 'many' || n % 3, CASE n % 5 WHEN 0 THEN 'installed' WHEN 1 THEN 'booting' ELSE 'available' END, 'x', n, 1
		FROM generate_series(1, 60000) AS n RETURNING 1) SELECT count(*) FROM made`); n != 60_000 {
		t.Fatalf("%d machines", n)
	}
	read := func(what string, run func(ctx context.Context, q *statement.Queries) error) {
		t.Helper()
		p.must(p.shift.View(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
			a := &asked{DBTX: tx}
			if err := run(ctx, statement.New(a)); err != nil {
				return err
			}
			n, text, err := pagesRead(ctx, tx, a.text, a.args...)
			if n > 200 || strings.Contains(text, "Seq Scan") {
				t.Errorf("%s: it read %d pages:\n%s", what, n, text)
			}
			return err
		}))
	}
	oldest := func(ctx context.Context, q *statement.Queries) error {
		rows, err := q.ListOldestInStates(ctx)
		if len(rows) != 4 {
			t.Errorf("the oldest of each state are %v", rows)
		}
		return err
	}
	read("the oldest, of an unknown table", oldest)
	_, err := bmdb.Exec(t.Context(), p.shift, "ANALYZE machine_state")
	p.must(err)
	read("the oldest", oldest)
	read("the late", func(ctx context.Context, q *statement.Queries) error {
		row, err := q.CountLateAnywhere(ctx, statement.CountLateAnywhereParams{State: string(fleet.StateBooting), Before: 31})
		if row.N != 6 || row.Oldest != 1 {
			t.Errorf("late are %v", row)
		}
		return err
	})
}
