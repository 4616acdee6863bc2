package bmdb_test

import (
	"bytes"
	"compress/flate"
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// fullDisk is an engine whose server has no room for rows of history while it is full, and writes
// other rows anew where they were.
type fullDisk struct {
	bmdb.Engine
	full atomic.Bool
	// largest is how many bytes the largest row had that was to be inserted, compressed.
	largest atomic.Int64
}

func (d *fullDisk) Update(ctx context.Context, fn func(context.Context, bmdb.Tx) error) error {
	return d.Engine.Update(ctx, func(ctx context.Context, tx bmdb.Tx) error { return fn(ctx, fullTx{tx, d}) })
}

type fullTx struct {
	bmdb.Tx
	disk *fullDisk
}

func (t fullTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if !strings.Contains(query, "INSERT INTO history") {
		return t.Tx.ExecContext(ctx, query, args...)
	}
	var row bytes.Buffer
	compressed, _ := flate.NewWriter(&row, flate.BestSpeed)
	for _, arg := range args {
		if text, is := arg.(string); is {
			_, _ = compressed.Write([]byte(text))
		}
	}
	_ = compressed.Close()
	t.disk.largest.Store(max(t.disk.largest.Load(), int64(row.Len())))
	if t.disk.full.Load() {
		return nil, bmdb.Full("the disk is full: %w", errors.New("53100"))
	}
	return t.Tx.ExecContext(ctx, query, args...)
}

// TestAFullDiskIsNotForgotten: from the first change that has found no room on, nothing is said to
// be writable until room is found, whatever is written meanwhile that needs none.
func TestAFullDiskIsNotForgotten(t *testing.T) {
	t.Parallel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	disk := &fullDisk{Engine: open(t, filepath.Join(t.TempDir(), "bmdb"))}
	db, err := bmdb.Open(t.Context(), disk, bmdb.Options{})
	must(err)
	defer closed(t, db)
	must(db.RegisterProvider(t.Context(), "metal", "test", 0))
	rows := func() (n int) {
		t.Helper()
		must(disk.View(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
			return tx.QueryRowContext(ctx, "SELECT count(*) FROM history").Scan(&n)
		}))
		return n
	}
	before := rows()
	disk.full.Store(true)
	must(db.CheckWritable(t.Context())) // nobody knows yet
	for range 2 {
		if err := db.HoldRecovery(t.Context(), "ada", nil, "a switch"); !errors.Is(err, bmdb.ErrFull) || !errors.Is(err, bmdb.ErrUnavailable) {
			t.Fatalf("stopped recovery without room for its history: %v", err)
		}
		for range 3 {
			must(db.ListenerAlive(t.Context(), time.Hour, time.Second))
			if err := db.CheckWritable(t.Context()); !errors.Is(err, bmdb.ErrFull) || fleet.KindOf(err) != fleet.KindTemporary {
				t.Errorf("a full disk: %v", err)
			}
		}
		disk.full.Store(false)
		must(db.CheckWritable(t.Context()))
		disk.full.Store(true)
		must(db.CheckWritable(t.Context()))
	}
	if n := rows(); n != before {
		t.Errorf("looking for room has left %d rows", n-before)
	}
	if n, page := disk.largest.Load(), int64(8<<10); n < 2*page {
		t.Errorf("the largest row had %d bytes: the free space of a page may hold it", n)
	}
}
