package sqlite

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
)

// TestAMigrationThatIsStopped: whatever the database says of a migration that was told to stop,
// such as that its transaction is over already, the failure is known as a stop.
func TestAMigrationThatIsStopped(t *testing.T) {
	t.Parallel()
	e, err := Open(t.Context(), filepath.Join(t.TempDir(), "bmdb"), Options{Unsynced: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	if err := e.Migrate(ctx); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("nobody stopped it: %v", err)
	}
	stop()
	if err := e.Migrate(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "database is closed") {
		t.Errorf("stopped: %v", err)
	}
}

// TestMigrationsUpDownUp: each version up, down and up again over rows of the version before, and
// what it left is a working schema.
func TestMigrationsUpDownUp(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	e, err := Open(ctx, filepath.Join(t.TempDir(), "bmdb"), Options{Unsynced: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	p, err := migrationsOf(e.pool)
	if err != nil {
		t.Fatal(err)
	}
	m := bmdbtest.Migrations{
		UpTo:   func(ctx context.Context, v int64) error { _, err := p.UpTo(ctx, v); return err },
		DownTo: func(ctx context.Context, v int64) error { _, err := p.DownTo(ctx, v); return err },
		DB:     e.pool, Derived: []string{"state_count"},
		Columns: `SELECT t.name, c.name, c.type FROM sqlite_schema t, pragma_table_info(t.name) c
			WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite%' AND t.name NOT LIKE 'goose%' ORDER BY t.name, c.cid`,
	}
	for _, s := range p.ListSources() {
		m.Versions = append(m.Versions, s.Version)
	}
	m.KeepRows(t)
	var left int
	err = e.View(ctx, func(ctx context.Context, tx bmdb.Tx) error {
		return tx.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE name NOT LIKE 'goose%' AND name NOT LIKE 'sqlite%'`).Scan(&left)
	})
	if err != nil || left != 0 {
		t.Fatalf("%d things are left after the way down, %v", left, err)
	}
	db, err := func() (*bmdb.DB, error) {
		if err := e.Migrate(ctx); err != nil {
			return nil, err
		}
		return bmdb.Open(ctx, e, bmdb.Options{})
	}()
	if err != nil {
		t.Fatal(err)
	}
	if err := db.RegisterProvider(ctx, "p", "test", 0); err != nil {
		t.Fatal(err)
	}
}
