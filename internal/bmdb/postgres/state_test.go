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
	"github.com/ironherd/ironherd/test/pgserver"
)

// TestTimesInStatesAreFoundByIndex: since when machines are in their states, and which are late, is
// found by an index, past all the others; the former whatever PostgreSQL knows of the table.
func TestTimesInStatesAreFoundByIndex(t *testing.T) {
	t.Parallel()
	// in a database that no other test has had: the rows that those leave dead cost pages
	s := pgserver.Shared(t)
	url := s.URL(s.Borrow(t, "states", migrate))
	p := join(t, url, postgres.Options{Silent: true})
	p.stock(1)
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

// TestBackoffsAreCountedByIndex: those of one process are counted past all those of the others, and
// those that tell something of a host past all that do not; whatever PostgreSQL knows of the table.
func TestBackoffsAreCountedByIndex(t *testing.T) {
	t.Parallel()
	// in a database that no other test has had: the rows that this one leaves dead cost pages
	s := pgserver.Shared(t)
	url := s.URL(s.Borrow(t, "counted", migrate))
	p := join(t, url, postgres.Options{Silent: true})
	const process, state, many = string(fleet.ProcessAgentStart), string(fleet.StateProvided), 60_000
	// This test says when they are known, and counts no pages of rows that are gone.
	for _, table := range []string{"machine", "machine_state", "host_key", "backoff"} {
		_, err := bmdb.Exec(t.Context(), p.shift, "ALTER TABLE "+table+" SET (autovacuum_enabled = off)")
		p.must(err)
		_, err = bmdb.Exec(t.Context(), p.shift, "TRUNCATE "+table)
		p.must(err)
	}
	for _, fill := range []string{
		`INSERT INTO machine (id, provider, provider_id, created_at, takeover_generation, epoch, session, process, limited, since, why, note, revision,
		due_agent_start, due_install, due_operation, due_recovery, due_probe)
		SELECT 'm-' || n, 'p1', 'm-' || n, 1, 0, 0, '', '', '', 0, '', '', 0, 0, 0, 0, 0, n FROM generate_series(1, $1) AS n`,
		`INSERT INTO machine_state (machine, provider, state, reason, since, policy)
		SELECT 'm-' || n, 'p1', 'provided', 'x', n, 1 FROM generate_series(1, $1) AS n`,
		`INSERT INTO host_key (machine, at, pinned, refused) SELECT 'm-' || n, 1, 'k', CASE n % 10000 WHEN 0 THEN 'r' ELSE '' END FROM generate_series(1, $1) AS n`,
		`INSERT INTO backoff (subject, process, not_before, lasts, cause, failures, answered, since)
		SELECT 'm-' || n, CASE WHEN n % 5000 = 2 THEN 'install' WHEN n % 2 = 0 THEN 'agent-start' ELSE 'probe' END, n, 1,
		'it refuses us', 1, CASE WHEN n % 10000 = 0 THEN 3 WHEN n % 5000 = 0 THEN 2 ELSE 1 END, CASE n % 5000 WHEN 1 THEN n ELSE 0 END
		FROM generate_series(1, $1) AS n`,
	} {
		if n := query[int](t, url, "WITH made AS ("+fill+" RETURNING 1) SELECT count(*) FROM made", many); n != many {
			t.Fatalf("%d rows", n)
		}
	}
	count := func(what string, pages int, run func(ctx context.Context, q *statement.Queries) error) {
		t.Helper()
		p.must(p.shift.View(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
			a := &asked{DBTX: tx}
			if err := run(ctx, statement.New(a)); err != nil {
				return err
			}
			n, text, err := pagesRead(ctx, tx, a.text, a.args...)
			if n > pages || strings.Contains(text, "Seq Scan") {
				t.Errorf("%s: it read %d pages:\n%s", what, n, text)
			}
			return err
		}))
	}
	keys := func(known string) {
		t.Helper()
		count("host keys, "+known, 300, func(ctx context.Context, q *statement.Queries) error {
			row, err := q.CountRefusedHostKeys(ctx, statement.CountRefusedHostKeysParams{Process: process, State: state, MaxRows: bmdb.CountedAtMost})
			if row.N != 6 || row.First != "m-10000" {
				t.Errorf("host keys are refused: %v, %s", row, known)
			}
			return err
		})
	}
	restarted := func(known string) {
		t.Helper()
		count("not restarted, "+known, 30_000, func(ctx context.Context, q *statement.Queries) error {
			n, err := q.CountNotRestarted(ctx, statement.CountNotRestartedParams{
				Provider: "p1", State: state, Before: 2500, Recovery: string(fleet.ProcessProbe), Process: process,
			})
			if n != 1 {
				t.Errorf("%d are not restarted, %s", n, known)
			}
			return err
		})
	}
	all := func(known string) {
		count("backing off, "+known, 100, func(ctx context.Context, q *statement.Queries) error {
			n, err := q.CountBackoffs(ctx, statement.CountBackoffsParams{Process: string(fleet.ProcessInstall), Now: 5002, MaxRows: bmdb.CountedAtMost})
			if n != 10 {
				t.Errorf("%d back off, %s", n, known)
			}
			return err
		})
		count("failing, "+known, 300, func(ctx context.Context, q *statement.Queries) error {
			n, err := q.CountFailing(ctx, statement.CountFailingParams{
				Process: string(fleet.ProcessInstall), State: state, Least: 1, MaxRows: bmdb.CountedAtMost,
			})
			if n != 12 {
				t.Errorf("%d fail, %s", n, known)
			}
			return err
		})
		keys(known)
		restarted(known)
		count("refusing, "+known, 300, func(ctx context.Context, q *statement.Queries) error {
			row, err := q.CountHostsRefusing(ctx, statement.CountHostsRefusingParams{Process: process, State: state, MaxRows: bmdb.CountedAtMost})
			if row.N != 6 || row.First != "m-15000" {
				t.Errorf("hosts refuse: %v, %s", row, known)
			}
			return err
		})
		count("unasked, "+known, 300, func(ctx context.Context, q *statement.Queries) error {
			row, err := q.CountUnasked(ctx, statement.CountUnaskedParams{Before: 50_000, MaxRows: bmdb.CountedAtMost})
			if row.N != 10 || row.First != "m-1" || row.Since != 1 {
				t.Errorf("unasked: %v, %s", row, known)
			}
			return err
		})
	}
	all("of unknown tables")
	_, err := bmdb.Exec(t.Context(), p.shift, "ANALYZE machine, machine_state, host_key, backoff")
	p.must(err)
	all("of known tables")
	_, err = bmdb.Exec(t.Context(), p.shift, "UPDATE backoff SET answered = 2 WHERE answered = 1 AND process = 'agent-start'")
	p.must(err)
	keys("where half of the hosts refuse us otherwise")
	_, err = bmdb.Exec(t.Context(), p.shift, "ANALYZE backoff")
	p.must(err)
	keys("where it is known that they do")
}
