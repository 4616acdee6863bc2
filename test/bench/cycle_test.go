package main

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
)

// TestCyclerFinishes: who does not say how works end has them finished.
func TestCyclerFinishes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	engine, err := sqlite.Open(ctx, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Unsynced: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	db, err := bmdb.Open(ctx, engine, bmdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if err := makeFleet(ctx, db, 20); err != nil {
		t.Fatal(err)
	}
	session, err := startSession(ctx, db, "initializer")
	if err != nil {
		t.Fatal(err)
	}
	c := &cycler{db: db, session: session, batch: 5, hold: 10}
	n, err := c.run(ctx, time.Now().Add(time.Minute), 40)
	if err != nil || n < 40 || n > 45 {
		t.Fatalf("%d cycles, %v", n, err)
	}
	if err := (&bench{}).sound(ctx, db); err != nil {
		t.Fatal(err)
	}
}
