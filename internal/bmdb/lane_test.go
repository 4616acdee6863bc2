package bmdb_test

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestEndsTogetherNameTheirSession: among ends that are committed together is one whose claim was
// lost: the lane is another session's, under the same epoch (rule 3).
func TestEndsTogetherNameTheirSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newEnders(t)
		defer closed(t, c.db)
		lostOne, other := c.works[2], c.start("other")
		errs := c.finish(c.works, func() {
			err := c.engine.Engine.Update(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
				_, err := tx.ExecContext(ctx, "UPDATE machine SET session = $1 WHERE id = $2", string(other.ID()), string(lostOne.Subject.Machine))
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
		for i, err := range errs {
			if i == 2 && !lost(err) || i != 2 && err != nil {
				t.Errorf("the end of work %d: %v", i, err)
			}
		}
		r, err := c.db.Machine(t.Context(), lostOne.Subject.Machine)
		if err != nil {
			t.Fatal(err)
		}
		if h := r.Holds[fleet.LaneHost]; h.Session != other.ID() || h.Epoch != lostOne.Epoch {
			t.Errorf("held by %+v", h)
		}
		rows, err := c.db.History(t.Context(), lostOne.Subject.Machine, 10)
		if err != nil || slices.ContainsFunc(rows, func(r bmdb.HistoryRow) bool { return r.Event == fleet.EventFinished }) {
			t.Errorf("history %+v, %v", rows, err)
		}
	})
}

// TestManyLeasesAreExtended: however many works a session holds, an extension finds each of them,
// and those alone void that somebody voided (rule 8).
func TestManyLeasesAreExtended(t *testing.T) {
	t.Parallel()
	const many = 10_100
	ctx := t.Context()
	engine := open(t, filepath.Join(t.TempDir(), "bmdb"))
	db, err := bmdb.Open(ctx, engine, bmdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, db)
	if err := engine.Update(ctx, func(ctx context.Context, tx bmdb.Tx) error { return stockRows(ctx, tx, many) }); err != nil {
		t.Fatal(err)
	}
	s, err := db.StartSession(ctx, bmdb.SessionOptions{Component: "a", Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: many})
	if err != nil || len(c.Works) != many {
		t.Fatalf("claimed %d, %v", len(c.Works), err)
	}
	// known returns how many works the session knows of after one more extension: an extension says
	// how many there were before it.
	known := func() int {
		t.Helper()
		for range 2 {
			if err := s.Extend(ctx); err != nil {
				t.Fatal(err)
			}
		}
		sum, err := db.Summary(ctx)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(sum.Processes, func(p bmdb.ProcessSummary) bool { return p.Process == fleet.ProcessAgentStart })
		return sum.Processes[i].Running
	}
	if n := known(); n != many {
		t.Fatalf("%d of %d works are void", many-n, many)
	}
	last := c.Works[many-1]
	guarded, release := last.Guard(ctx)
	defer release()
	if err := bmdbtest.Quarantine(ctx, db, "op", last.Subject.Machine, "x"); err != nil {
		t.Fatal(err)
	}
	if n := known(); n != many-1 {
		t.Errorf("%d works are void, want one", many-n)
	}
	<-guarded.Done()
}

// stockRows makes machines that are due for an agent by one statement for each table: so many would
// take the protocol's operations long.
func stockRows(ctx context.Context, tx bmdb.Tx, n int) error {
	const all = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $1) "
	for _, statement := range []string{
		all + `INSERT INTO machine (id, provider, provider_id, created_at, takeover_generation, epoch, session, process, limited, since, why,
			note, revision, due_agent_start, due_install, due_recovery)
			SELECT printf('m%05d', i), 'p', printf('d%05d', i), 1, 0, 0, '', '', '', 0, '', '', 0, 1, 0, 0 FROM n`,
		all + `INSERT INTO fact_provided (machine, provider, at, created_at, active_at, status, detail, hostname, address, location, capacity,
			host_keys) SELECT printf('m%05d', i), 'p', 1, 1, 1, 'active', '', '', '192.0.2.1', '', '', '' FROM n`,
		all + `INSERT INTO agenda (process, due_at, subject, provider) SELECT 'agent-start', 1, printf('m%05d', i), 'p' FROM n`,
	} {
		if _, err := tx.ExecContext(ctx, statement, n); err != nil {
			return err
		}
	}
	return nil
}

// TestOpeningFreesEveryLane: one process has the database at a time, so whoever held a machine or a
// provider in the last one is dead, and nobody has to come across the lane first (rule 4).
func TestOpeningFreesEveryLane(t *testing.T) {
	t.Parallel()
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "bmdb")
	db := openDB(t, path)
	if err := bmdbtest.Stock(ctx, db, "p", []fleet.MachineID{fleet.NewMachineID(), fleet.NewMachineID()}, nil); err != nil {
		t.Fatal(err)
	}
	s, err := db.StartSession(ctx, bmdb.SessionOptions{Component: "killed", Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for process, want := range map[fleet.Process]int{fleet.ProcessUpdate: 1, fleet.ProcessAgentStart: 2} {
		c, err := s.Claim(ctx, bmdb.ClaimRequest{Process: process, Limit: 2})
		if err != nil || len(c.Works) != want {
			t.Fatalf("claimed %d of %s, %v", len(c.Works), process, err)
		}
	}
	if held, err := bmdbtest.Held(ctx, db, s.ID()); err != nil || len(held) != 3 {
		t.Fatalf("%+v are held, %v", held, err)
	}
	closed(t, db) // without closing the session, as a killed process does

	db = openDB(t, path)
	defer closed(t, db)
	if held, err := bmdbtest.Held(ctx, db, s.ID()); err != nil || len(held) != 0 {
		t.Errorf("%+v are held by a process that is gone, %v", held, err)
	}
	rows, err := db.ProviderHistory(ctx, "p", 10, false)
	if err != nil || !slices.ContainsFunc(rows, func(r bmdb.HistoryRow) bool {
		return r.Process == fleet.ProcessUpdate && r.Event == fleet.EventExpired
	}) {
		t.Errorf("history %+v, %v", rows, err)
	}
}
