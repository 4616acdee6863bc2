package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// explaining asks for the plan of each statement that asks for rows.
type explaining struct {
	statement.DBTX
	t    *testing.T
	plan []string
}

func (e *explaining) QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row {
	e.explain(ctx, text, args)
	return e.DBTX.QueryRowContext(ctx, text, args...)
}

func (e *explaining) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	e.explain(ctx, text, args)
	return e.DBTX.QueryContext(ctx, text, args...)
}

func (e *explaining) explain(ctx context.Context, text string, args []any) {
	e.plan = nil
	rows, err := e.DBTX.QueryContext(ctx, "EXPLAIN QUERY PLAN "+text, args...)
	if err != nil {
		e.t.Error(err)
		return
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id, parent, unused int
		var step string
		if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
			e.t.Error(err)
		}
		e.plan = append(e.plan, step)
	}
	if err := rows.Err(); err != nil {
		e.t.Error(err)
	}
}

// TestTimesInStatesAreFoundByIndex: since when machines are in their states, and which are late,
// is found by an index, past all the others.
func TestTimesInStatesAreFoundByIndex(t *testing.T) {
	t.Parallel()
	engine := sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{})
	defer func() { _ = engine.Close() }()
	of := regexp.MustCompile(`^(SCAN|SEARCH) s\b.*`)
	err := engine.View(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
		e := &explaining{DBTX: tx, t: t}
		check := func(err error, want ...string) error {
			var got []string
			for _, step := range e.plan {
				if step = of.FindString(step); step != "" {
					got = append(got, step)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("the plan is %q", e.plan)
			}
			return err
		}
		const index = "SEARCH s USING COVERING INDEX machine_state_since "
		_, err := statement.New(e).ListOldestInStates(ctx)
		if err := check(err, index+"(provider=?)", index+"(provider=? AND state>?)", index+"(provider=? AND state>?)"); err != nil {
			return err
		}
		_, err = statement.New(e).CountLateAnywhere(ctx, statement.CountLateAnywhereParams{State: string(fleet.StateFailed), Before: 1})
		return check(err, index+"(provider=? AND state=? AND since<?)", index+"(provider=? AND state=? AND since<?)")
	})
	if err != nil {
		t.Error(err)
	}
}

// TestMachinesElsewhereAreFoundByIndex: one entry of a provider's list is looked up by key at the
// other providers (rule 12), although SQLite knows no statistics.
func TestMachinesElsewhereAreFoundByIndex(t *testing.T) {
	t.Parallel()
	engine := sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{})
	defer func() { _ = engine.Close() }()
	err := engine.View(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
		e := &explaining{DBTX: tx, t: t}
		_, err := statement.New(e).ListElsewhere(ctx, statement.ListElsewhereParams{Name: "a", ProviderID: "b"})
		if !slices.Contains(e.plan, "SEARCH m USING INDEX machine_provider_id (provider=? AND provider_id=?)") {
			t.Errorf("the plan is %q", e.plan)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestBackoffsAreCountedByIndex: those of one process are counted past all those of the others, and
// those that tell something of a host past all that do not.
func TestBackoffsAreCountedByIndex(t *testing.T) {
	t.Parallel()
	engine := sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{})
	defer func() { _ = engine.Close() }()
	all, tables := regexp.MustCompile(`^SCAN (f|k|m|s|backoff)\b`), regexp.MustCompile("^(SEARCH|SCAN host_key)")
	err := engine.View(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
		e := &explaining{DBTX: tx, t: t}
		q := statement.New(e)
		check := func(err error, want string) {
			t.Helper()
			if err != nil && !errors.Is(err, sql.ErrNoRows) {
				t.Error(err)
			}
			begin := slices.IndexFunc(e.plan, tables.MatchString)
			if begin < 0 || e.plan[begin] != want || slices.ContainsFunc(e.plan, all.MatchString) {
				t.Errorf("the plan is %q", e.plan)
			}
		}
		_, err := q.CountBackoffs(ctx, statement.CountBackoffsParams{Process: string(fleet.ProcessProbe), Now: 1, MaxRows: 1})
		check(err, "SEARCH backoff USING COVERING INDEX backoff_process (process=? AND not_before>?)")
		process, state := string(fleet.ProcessAgentStart), string(fleet.StateProvided)
		_, err = q.CountRefusedHostKeys(ctx, statement.CountRefusedHostKeysParams{Process: process, State: state, MaxRows: 1})
		check(err, "SCAN host_key USING INDEX host_key_refused")
		if !slices.Contains(e.plan, "SEARCH b USING INDEX sqlite_autoindex_backoff_1 (subject=? AND process=?)") {
			t.Errorf("those that refuse us are looked at: %q", e.plan)
		}
		_, err = q.CountFailing(ctx, statement.CountFailingParams{Process: process, State: state, Least: 3, MaxRows: 1})
		check(err, "SEARCH backoff USING INDEX backoff_process (process=?)")
		_, err = q.CountHostsRefusing(ctx, statement.CountHostsRefusingParams{Process: process, State: state, MaxRows: 1})
		check(err, "SEARCH backoff USING INDEX backoff_refused (process=?)")
		_, err = q.CountUnasked(ctx, statement.CountUnaskedParams{Before: 1, MaxRows: 1})
		check(err, "SEARCH f USING COVERING INDEX backoff_unasked (process=? AND since>? AND since<?)")
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestWhatAProviderHasIsCountedByIndex: past all that others have, although SQLite knows no
// statistics.
func TestWhatAProviderHasIsCountedByIndex(t *testing.T) {
	t.Parallel()
	engine := sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{})
	defer func() { _ = engine.Close() }()
	err := engine.View(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
		e := &explaining{DBTX: tx, t: t}
		_, err := statement.New(e).CountOfProvider(ctx, statement.CountOfProviderParams{Provider: "a", Now: 1, MaxRows: 1})
		for _, want := range []string{
			"SEARCH i USING COVERING INDEX intent_capacity (provider=?)",
			"SEARCH p USING INDEX sqlite_autoindex_penalty_1 (provider=?)",
			"SEARCH f USING COVERING INDEX sqlite_autoindex_discrepancy_1 (provider=?)",
		} {
			if !slices.Contains(e.plan, want) {
				t.Errorf("the plan is %q, want %q", e.plan, want)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
