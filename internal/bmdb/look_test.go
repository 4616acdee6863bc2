package bmdb_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
)

// looks is an engine that notes from where on the agenda is read.
type looks struct {
	bmdb.Engine
	from []time.Time
}

type lookingTx struct {
	bmdb.Tx
	looks *looks
}

func (l *looks) Peek(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return l.Engine.Peek(ctx, func(ctx context.Context, tx bmdb.Tx) error { return fn(ctx, lookingTx{tx, l}) })
}

func (t lookingTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if strings.Contains(query, "name: ListAgenda") {
		t.looks.from = append(t.looks.from, fromFloor(args[1].(int64)))
	}
	return t.Tx.QueryContext(ctx, query, args...)
}

// fromFloor is the floor that a position in the agenda was made of.
func fromFloor(after int64) time.Time {
	if after == 0 {
		return time.Time{}
	}
	return time.UnixMicro(after + 1).UTC()
}

// TestFloorRisesWhileWorkRemains: a look begins where the one before it ended, and not where there
// was work once; but not above what may be being written meanwhile.
func TestFloorRisesWhileWorkRemains(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := &looks{Engine: open(t, filepath.Join(t.TempDir(), "bmdb"))}
		db, err := bmdb.Open(t.Context(), engine, bmdb.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer closed(t, db)
		c := &enders{T: t, db: db}
		var due []time.Time
		for _, name := range []fleet.ProviderName{"a", "b", "c", "d"} {
			due = append(due, time.Now().UTC())
			if err := bmdbtest.Stock(t.Context(), db, name, []fleet.MachineID{fleet.NewMachineID()}, nil); err != nil {
				t.Fatal(err)
			}
			time.Sleep(7 * time.Second)
		}
		s := c.start("a")
		engine.from = nil
		for range due {
			c.claim(s, 1)
		}
		c.claim(s, 0)
		// The fourth is due for 7 s, which is less than others are given for their commits.
		want := []time.Time{{}, due[0], due[1], due[2], time.Now().UTC().Add(-10 * time.Second)}
		if !slices.Equal(engine.from, want) {
			t.Errorf("looked from %s, want %s", engine.from, want)
		}
	})
}

// TestALookPassesNothingThatIsNotDue: what other providers have to do later costs nobody anything.
func TestALookPassesNothingThatIsNotDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := &looks{Engine: open(t, filepath.Join(t.TempDir(), "bmdb"))}
		db, err := bmdb.Open(t.Context(), engine, bmdb.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer closed(t, db)
		c := &enders{T: t, db: db}
		s := c.start("a")
		ids := []fleet.MachineID{fleet.NewMachineID(), fleet.NewMachineID(), fleet.NewMachineID()}
		if err := bmdbtest.Stock(t.Context(), db, "theirs", ids, nil); err != nil {
			t.Fatal(err)
		}
		later := fleet.Backoff{Initial: time.Hour, Exponent: 1, Maximum: time.Hour}
		for _, w := range c.claim(s, len(ids)) {
			if err := w.Fail(t.Context(), bmdb.Failure{Cause: "down", Backoff: later}); err != nil {
				t.Fatal(err)
			}
		}
		engine.from = nil
		ours := bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Providers: []fleet.ProviderName{"ours"}, Limit: 1}
		claim, err := s.Claim(t.Context(), ours)
		if err != nil || len(claim.Works) != 0 || len(engine.from) != 1 || !claim.NextDue.After(time.Now()) || claim.NextDue.After(time.Now().Add(10*time.Second)) {
			t.Errorf("%d works by %d statements, next due %s: %v", len(claim.Works), len(engine.from), claim.NextDue, err)
		}
		if err := bmdbtest.Stock(t.Context(), db, "ours", []fleet.MachineID{fleet.NewMachineID()}, nil); err != nil {
			t.Fatal(err)
		}
		if claim, err = s.Claim(t.Context(), ours); err != nil || len(claim.Works) != 1 {
			t.Errorf("%d works: %v", len(claim.Works), err)
		}
	})
}
