package bmdbtest

import (
	"context"
	"database/sql"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// Bounds is an engine that notes how much its transactions are about (rule 12).
type Bounds struct {
	bmdb.Engine

	mu   sync.Mutex
	most map[string]int
}

// Most returns the most of its kind since the last call of Reset: with "LockMachines" the machines
// that one transaction locked; with "FlushAllSeen" the rows that one was given; and with the name
// of any other statement the rows that one was limited to.
func (b *Bounds) Most(kind string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.most[kind]
}

// Reset forgets what was noted.
func (b *Bounds) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.most = nil
}

func (b *Bounds) note(kind string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.most == nil {
		b.most = make(map[string]int)
	}
	b.most[kind] = max(b.most[kind], n)
}

// Update implements bmdb.Engine.
func (b *Bounds) Update(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return b.Engine.Update(ctx, b.watched(fn))
}

// View implements bmdb.Engine.
func (b *Bounds) View(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return b.Engine.View(ctx, b.watched(fn))
}

func (b *Bounds) watched(fn func(ctx context.Context, tx bmdb.Tx) error) func(ctx context.Context, tx bmdb.Tx) error {
	return func(ctx context.Context, tx bmdb.Tx) error { return fn(ctx, &boundedTx{Tx: tx, bounds: b}) }
}

// Many implements bmdb.Engine.
func (b *Bounds) Many(db statement.DBTX) statement.Many {
	many := b.Engine.Many(db)
	flush := many.FlushAllSeen
	many.FlushAllSeen = func(ctx context.Context, rows []statement.FlushSeenParams) error {
		b.note("FlushAllSeen", len(rows))
		return flush(ctx, rows)
	}
	return many
}

type boundedTx struct {
	bmdb.Tx
	bounds *Bounds
	locked int
}

func (t *boundedTx) LockMachines(ctx context.Context, ids []fleet.MachineID, skipLocked bool) ([]fleet.MachineID, error) {
	locked, err := t.Tx.LockMachines(ctx, ids, skipLocked)
	t.locked += len(locked)
	t.bounds.note("LockMachines", t.locked)
	return locked, err
}

// limited finds the name of a statement and which of its arguments is its limit.
var limited = regexp.MustCompile(`(?s)^-- name: (\w+) .*LIMIT CAST\([$?](\d+) AS BIGINT\)`)

func (t *boundedTx) limits(query string, args []any) {
	if !strings.Contains(query, "LIMIT CAST(") {
		return
	}
	if found := limited.FindStringSubmatch(query); found != nil {
		if n, err := strconv.Atoi(found[2]); err == nil && n <= len(args) {
			if limit, ok := args[n-1].(int64); ok {
				t.bounds.note(found[1], int(limit))
			}
		}
	}
}

func (t *boundedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	t.limits(query, args)
	return t.Tx.ExecContext(ctx, query, args...)
}

func (t *boundedTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	t.limits(query, args)
	return t.Tx.QueryContext(ctx, query, args...)
}
