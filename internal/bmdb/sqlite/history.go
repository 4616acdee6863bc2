package sqlite

import (
	"context"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
)

// PruneHistory implements bmdb.Engine by bounded deletes.
func (e *Engine) PruneHistory(ctx context.Context, before time.Time, limit int) (n int, err error) {
	return bmdb.Exec(ctx, e, `DELETE FROM history
		WHERE id IN (SELECT id FROM (SELECT id, at FROM history ORDER BY id LIMIT $1) WHERE at < $2)`, limit, before.UnixMicro())
}

// Notify implements bmdb.Engine: there is nobody to tell.
func (e *Engine) Notify(map[bmdb.Entry]time.Time) {}

// Subscribe implements bmdb.Engine: there is nobody who tells anything.
func (e *Engine) Subscribe(func(map[bmdb.Entry]time.Time)) {}
