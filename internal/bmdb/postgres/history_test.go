package postgres_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
)

// asked remembers the last statement that asked for rows.
type asked struct {
	statement.DBTX
	text string
	args []any
}

func (a *asked) QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row {
	a.text, a.args = text, args
	return a.DBTX.QueryRowContext(ctx, text, args...)
}

func (a *asked) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	a.text, a.args = text, args
	return a.DBTX.QueryContext(ctx, text, args...)
}

// TestAWorkEndIsFoundWithoutAScan: a commit that is repeated after a lost reply looks for the end
// of its work in history, and reads a few pages of it, however long that is.
func TestAWorkEndIsFoundWithoutAScan(t *testing.T) {
	t.Parallel()
	p, url, ids := stocked(t, 1, postgres.Options{})
	const pages = `SELECT sum(pg_relation_size(c.oid)) / 8192 FROM pg_class c WHERE c.relkind = 'r' AND c.relname LIKE 'history%'`
	now := time.Now().UnixMicro()
	query[int](t, url, `WITH made AS (
		INSERT INTO history (subject, at, actor, process, epoch, started_at, why, event, detail, retry_at, session)
		SELECT 'other-' || n % 500, CAST($1 AS BIGINT) - n, 'a@h', 'agent-start', n, CAST($1 AS BIGINT) - n, 'it is due', 'finished', '', 0, 's'
		FROM generate_series(1, 50000) AS n RETURNING 1) SELECT count(*) FROM made`, now)
	if n := query[int](t, url, pages); n < 500 {
		t.Fatalf("history has %d pages, too few to tell a scan", n)
	}
	p.must(p.shift.View(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
		a := &asked{DBTX: tx}
		_, err := statement.New(a).GetWorkEnd(ctx, statement.GetWorkEndParams{
			Subject: string(ids[0]), NotBefore: now - time.Hour.Microseconds(), StartedAt: now, Epoch: 1, Process: "agent-start",
		})
		if !errors.Is(err, sql.ErrNoRows) {
			t.Errorf("found an end: %v", err)
		}
		n, text, err := pagesRead(ctx, tx, a.text, a.args...)
		if err != nil {
			return err
		}
		if n > 100 {
			t.Errorf("it read %d pages:\n%s", n, text)
		}
		return nil
	}))
}

// pagesRead runs a statement, and returns how many pages it read, and its plan.
func pagesRead(ctx context.Context, tx bmdb.Tx, statement string, args ...any) (n int, text string, err error) {
	if err := tx.QueryRowContext(ctx, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+statement, args...).Scan(&text); err != nil {
		return 0, "", err
	}
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		} `json:"Plan"`
	}
	if err := json.Unmarshal([]byte(text), &plans); err != nil {
		return 0, "", err
	}
	return plans[0].Plan.Hit + plans[0].Plan.Read, text, nil
}

// TestOldHistoryOfACopyIsPruned: the default partition has all that a copy from SQLite brought, and
// removing some of it reads no more than where that is.
func TestOldHistoryOfACopyIsPruned(t *testing.T) {
	t.Parallel()
	p, url, _ := stocked(t, 1, postgres.Options{})
	old := time.Now().Add(-60 * 24 * time.Hour).UnixMicro()
	query[int](t, url, `WITH made AS (
		INSERT INTO history (subject, at, actor, process, epoch, started_at, why, event, detail, retry_at, session)
		SELECT 'other-' || n % 500, CAST($1 AS BIGINT) - n, 'a@h', 'agent-start', n, CAST($1 AS BIGINT) - n, 'it is due', 'finished', '', 0, 's'
		FROM generate_series(1, 20000) AS n RETURNING 1) SELECT count(*) FROM made`, old)
	p.must(p.shift.Update(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
		// a row costs pages of the table, and of the index for two looks at it
		const rows, each = 200, 20
		n, text, err := pagesRead(ctx, tx, postgres.PruneDefaultRows, old, rows)
		if n > rows*each {
			t.Errorf("it read %d pages:\n%s", n, text)
		}
		return err
	}))
	if left := query[int](t, url, "SELECT count(*) FROM history_default"); left != 19_800 {
		t.Errorf("%d rows are left", left)
	}
}

const day = 24 * time.Hour

// today is the server's day.
func today(t *testing.T, url string) time.Time {
	t.Helper()
	return query[time.Time](t, url, "SELECT clock_timestamp()").UTC().Truncate(day)
}

// days are the partitions of days.
func days(t *testing.T, url string) []string {
	t.Helper()
	return query[[]string](t, url, `SELECT coalesce(array_agg(CAST(relname AS TEXT)), CAST(ARRAY[] AS TEXT[])) FROM pg_class
		WHERE relname LIKE 'history_p%' AND relkind = 'r'`)
}

// wantDays wants the partitions of seven days, without the first ones, and the default one. The day
// on which the test began may have ended since: then that of a day more may be there already.
func wantDays(t *testing.T, url string, began time.Time, first int) {
	t.Helper()
	now, have := today(t, url), days(t, url)
	name := func(n int) string { return "history_p" + began.Add(time.Duration(n)*day).Format("20060102") }
	passed := int(now.Sub(began) / day)
	for n := first + passed; n < 7; n++ {
		if !slices.Contains(have, name(n)) {
			t.Errorf("there is no %s among %q", name(n), have)
		}
	}
	for _, is := range have {
		known := false
		for n := first; n < 7+passed; n++ {
			known = known || is == name(n)
		}
		if !known {
			t.Errorf("%s is among %q", is, have)
		}
	}
	if n := query[int](t, url, "SELECT count(*) FROM pg_inherits WHERE inhparent = CAST('history' AS REGCLASS)"); n != len(have)+1 {
		t.Errorf("%d partitions, want %d days and the default", n, len(have))
	}
}
