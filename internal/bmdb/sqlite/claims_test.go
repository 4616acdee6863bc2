package sqlite_test

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

// TestCrowdIsForgotten: who met others looks farther and takes any run of rows; who meets nobody
// any more takes those longest due, also when it takes one at a time.
func TestCrowdIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, err := bmdb.Open(t.Context(), open(t, filepath.Join(t.TempDir(), "bmdb")), bmdb.Options{Jitter: func() float64 { return 0.99 }})
		if err != nil {
			t.Fatal(err)
		}
		defer closed(t, db)
		machine := func() fleet.MachineID {
			t.Helper()
			id := fleet.NewMachineID()
			// A provider of its own, whose first pass is due at once.
			if err := bmdbtest.Stock(t.Context(), db, fleet.ProviderName("p-"+id), []fleet.MachineID{id}, nil); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			return id
		}
		c := &crowd{T: t, db: db}
		held := machine()
		holder := c.start("holder")
		if got := c.claim(holder, 1)[0].Subject.Machine; got != held {
			t.Fatalf("claimed %s, want %s", got, held)
		}
		time.Sleep(6 * time.Second)
		if err := holder.Extend(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second) // the row of what is held comes up
		ids := []fleet.MachineID{machine(), machine()}
		if got := c.claim(c.start("a"), 1)[0].Subject.Machine; got != ids[1] {
			t.Fatalf("in a crowd %s was claimed, want %s", got, ids[1])
		}
		machine()
		if got := c.claim(c.start("b"), 1)[0].Subject.Machine; got != ids[0] {
			t.Fatalf("with the crowd gone %s was claimed, want %s, which is due for longest", got, ids[0])
		}
	})
}

// looks is an engine that notes from where on the agenda is read.
type looks struct {
	bmdb.Engine
	from []time.Time
}

type lookingTx struct {
	bmdb.Tx
	looks *looks
}

func (l *looks) Glance(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return l.Engine.Glance(ctx, func(ctx context.Context, tx bmdb.Tx) error { return fn(ctx, lookingTx{tx, l}) })
}

func (t lookingTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if strings.Contains(query, "name: ListDueAfter") {
		t.looks.from = append(t.looks.from, time.UnixMicro(args[2].(int64)).UTC())
	}
	return t.Tx.QueryContext(ctx, query, args...)
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
		c := &crowd{T: t, db: db}
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
