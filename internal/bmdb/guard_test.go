package bmdb_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestAStopThatWasUndoneIsNotTold: the transaction that stops recovery is undone and run again;
// meanwhile all are heard. Nothing was done.
func TestAStopThatWasUndoneIsNotTold(t *testing.T) {
	t.Parallel()
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "bmdb")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	db := openDB(t, path)
	agents := bmdbtest.Manage(t, db, 2, nil)
	check(db.ListenerAlive(ctx, 24*time.Hour, 30*time.Second))
	policy := fleet.DefaultPolicy()
	policy.SuspectLeast = 2
	_, err := db.SetPolicy(ctx, policy)
	check(err)
	closed(t, db)

	later := &bmdbtest.Shift{Engine: open(t, path)}
	later.Advance(policy.NeverSpokeAfter + time.Minute)
	engine := &again{Engine: later}
	db, err = bmdb.Open(ctx, engine, bmdb.Options{}) // in its first minute it lets nothing go on
	check(err)
	defer closed(t, db)
	_, err = db.StartSession(ctx, bmdb.SessionOptions{Component: fleet.RoleRecoverer.Component(), Lease: time.Hour})
	check(err)
	_, err = db.RecomputeAgenda(ctx, 100)
	check(err)
	engine.meanwhile = func() {
		for _, a := range agents {
			check(db.RecordSpoken(ctx, a, "b"))
		}
	}
	did, err := db.WatchSilence(ctx)
	check(err)
	if hold, err := bmdbtest.RecoveryHold(ctx, db); did != "" || err != nil || hold != nil {
		t.Errorf("it did %q, and recovery is stopped by %+v, %v", did, hold, err)
	}
	if engine.meanwhile != nil {
		t.Error("nothing was undone")
	}
}
