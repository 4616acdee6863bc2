package postgres

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/test/pgserver"
)

// TestAnOldDatabaseIsNoLeap: in the first schema the clock said when the database was made.
// One that was made long ago is not taken for one that nobody has used since.
func TestAnOldDatabaseIsNoLeap(t *testing.T) {
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
	e, err := Open(ctx, server.URL(name), Options{Silent: true, Lease: 2 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	p, err := e.migrations()
	if err == nil {
		_, err = p.UpTo(ctx, 1)
	}
	is, known, markErr := readMark(ctx, e.transactions)
	if err != nil || markErr != nil || !known {
		t.Fatalf("%v, %v, %v", err, markErr, known)
	}
	_, err = e.transactions.Exec(ctx, "INSERT INTO database_mark (id, clock, counter) VALUES ($1, 1000000, $2)",
		is.id, is.timeline)
	if err == nil {
		err = e.Migrate(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	db, err := bmdb.Open(ctx, e, bmdb.Options{}) // it owns the engine
	if err != nil {
		t.Fatal(err)
	}
	if env, err := db.Environment(ctx); err != nil || env.Restored != "" {
		t.Errorf("evidence %q, %v", env.Restored, err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// TestAMigrationMeetsATransaction: it is undone, and tried again until the transaction is over.
func TestAMigrationMeetsATransaction(t *testing.T) {
	t.Parallel()
	ctx, server := t.Context(), pgserver.Shared(t)
	name, err := server.Create(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	e, err := Open(ctx, server.URL(name)+"&lock_timeout=400", Options{Silent: true, Lease: 2 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(e.Close(), server.Drop(context.WithoutCancel(ctx), name)); err != nil {
			t.Error(err)
		}
	})
	p, err := e.migrations()
	if err == nil {
		_, err = p.UpTo(ctx, 7)
	}
	if err != nil {
		t.Fatal(err)
	}
	other, err := pgx.Connect(ctx, server.URL(name))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close(context.WithoutCancel(ctx)) }()
	if _, err := other.Exec(ctx, "BEGIN; LOCK TABLE installed IN ROW EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	migrated := make(chan error, 1)
	go func() { migrated <- e.Migrate(ctx) }()
	for _, waiting := range []bool{true, false, true} {
		for is := !waiting; is != waiting; {
			err := other.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = CAST('installed' AS regclass) AND NOT granted)").Scan(&is)
			if err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-migrated:
				t.Fatalf("the migration has ended beside the transaction: %v", err)
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	if _, err := other.Exec(ctx, "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if err := <-migrated; err != nil {
		t.Error(err)
	}
}

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
	e, err := Open(ctx, server.URL(name), Options{Silent: true, Lease: 2 * time.Minute})
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
		// The mark says when the database was used last, and migrating uses it.
		DB: e.transactions.sql, Derived: []string{"state_count", "database_mark"},
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
	again, err := Open(ctx, server.URL(name), Options{Silent: true, Lease: 2 * time.Minute})
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
