package sqlite

import (
	"context"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
)

// PruneHistory implements bmdb.Engine by bounded deletes. The start of work that runs still stays.
func (e *Engine) PruneHistory(ctx context.Context, before time.Time, limit int) (n int, err error) {
	err = e.Update(ctx, func(ctx context.Context, tx bmdb.Tx) error {
		result, err := tx.ExecContext(ctx, `DELETE FROM history
			WHERE id IN (SELECT id FROM (SELECT id, at FROM history ORDER BY id LIMIT $1) WHERE at < $2)
			AND NOT (edge = 'start' AND EXISTS (SELECT 1 FROM lane l
				WHERE l.subject = history.subject AND l.lane = history.lane AND l.epoch = history.epoch AND l.session <> ''))`,
			limit, before.UnixMicro())
		if err != nil {
			return err
		}
		removed, err := result.RowsAffected()
		n = int(removed)
		return err
	})
	return n, err
}

// Tell implements bmdb.Engine: there is nobody to tell.
func (e *Engine) Tell([]bmdb.Hint) {}

// Hear implements bmdb.Engine: nobody tells anything.
func (e *Engine) Hear(func([]bmdb.Hint)) {}
