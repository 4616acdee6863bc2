package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/test/pgserver"
)

// TestMigrationsUpDownUp: each version up, down and up again over rows of the version before, and
// what it left is a working schema.
func TestMigrationsUpDownUp(t *testing.T) {
	t.Parallel()
	ctx, server := t.Context(), pgserver.Shared(t)
	name, err := server.Create(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Drop(context.WithoutCancel(ctx), name); err != nil {
			t.Error(err)
		}
	})
	e, err := Open(ctx, server.URL(name), Options{Silent: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	p, err := e.migrations()
	if err != nil {
		t.Fatal(err)
	}
	m := bmdbtest.Migrations{
		UpTo:   func(ctx context.Context, v int64) error { _, err := p.UpTo(ctx, v); return err },
		DownTo: func(ctx context.Context, v int64) error { _, err := p.DownTo(ctx, v); return err },
		DB:     e.transactions.sql, Derived: []string{"state_count"},
		Columns: `SELECT c.table_name, c.column_name, c.data_type FROM information_schema.columns c
			JOIN pg_class t ON t.relname = c.table_name AND t.relnamespace = CAST(current_schema() AS regnamespace)
			WHERE c.table_schema = current_schema() AND c.is_identity = 'NO' AND t.relkind IN ('r', 'p') AND NOT t.relispartition
			AND c.table_name NOT LIKE 'goose%' ORDER BY c.table_name, c.ordinal_position`,
	}
	for _, s := range p.ListSources() {
		m.Versions = append(m.Versions, s.Version)
	}
	m.KeepRows(t)
	var left int
	err = e.transactions.QueryRow(ctx, `SELECT count(*) FROM pg_class WHERE relnamespace = CAST(current_schema() AS regnamespace)
		AND relname NOT LIKE 'goose%' AND relkind IN ('r', 'p', 'S', 'v', 'f')`).Scan(&left)
	if err != nil || left != 0 {
		t.Fatalf("%d things are left after the way down, %v", left, err)
	}
	if err := e.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	// bmdb.Open closes what it is given
	again, err := Open(ctx, server.URL(name), Options{Silent: true})
	if err != nil {
		t.Fatal(err)
	}
	db, err := bmdb.Open(ctx, again, bmdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.RegisterProvider(ctx, "p", "test", 0); err != nil {
		t.Error(err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// TestMigrationInterrupted: a migration that makes an index beside those who write the table, and
// gives up because one of them does not end, is done when it is run again.
func TestMigrationInterrupted(t *testing.T) {
	t.Parallel()
	ctx, server := t.Context(), pgserver.Shared(t)
	name, err := server.Create(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Drop(context.WithoutCancel(ctx), name); err != nil {
			t.Error(err)
		}
	})
	e, err := Open(ctx, server.URL(name), Options{Silent: true, Lease: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	p, err := e.migrations()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.UpTo(ctx, 2); err != nil {
		t.Fatal(err)
	}
	stranger, err := pgx.Connect(ctx, server.URL(name))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Close(context.WithoutCancel(ctx)) }()
	exec := func(query string) {
		t.Helper()
		if _, err := stranger.Exec(ctx, query); err != nil {
			t.Fatal(err)
		}
	}
	exec("BEGIN")
	exec("INSERT INTO agenda VALUES ('x', 'recovery', 'p', 1)")
	if err := e.Migrate(ctx); fleet.KindOf(err) != fleet.KindTemporary {
		t.Fatalf("migrated beside a writer that does not end: %v", err)
	}
	var halfway int
	if err := stranger.QueryRow(ctx, "SELECT count(*) FROM pg_index WHERE NOT indisvalid").Scan(&halfway); err != nil || halfway != 1 {
		t.Errorf("%d indexes are left unfinished, %v: the test tests nothing", halfway, err)
	}
	exec("COMMIT")
	if err := e.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	var valid bool
	err = stranger.QueryRow(ctx, "SELECT indisvalid FROM pg_index WHERE indexrelid = CAST('agenda_recovery' AS regclass)").Scan(&valid)
	if err != nil || !valid {
		t.Errorf("the index is valid: %t, %v", valid, err)
	}
}
