package bmdbtest

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
)

// Shift is an engine whose database time can be moved forward.
type Shift struct {
	bmdb.Engine
	ahead atomic.Int64
}

// Advance moves database time forward, for every transaction that starts from now on.
func (s *Shift) Advance(d time.Duration) { s.ahead.Add(int64(d)) }

type shiftedTx struct {
	bmdb.Tx
	now time.Time
}

func (t shiftedTx) Now() time.Time { return t.now }

func (s *Shift) shift(fn func(ctx context.Context, tx bmdb.Tx) error) func(ctx context.Context, tx bmdb.Tx) error {
	return func(ctx context.Context, tx bmdb.Tx) error {
		return fn(ctx, shiftedTx{tx, tx.Now().Add(time.Duration(s.ahead.Load()))})
	}
}

// Update implements bmdb.Engine.
func (s *Shift) Update(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return s.Engine.Update(ctx, s.shift(fn))
}

// Extend implements bmdb.Engine.
func (s *Shift) Extend(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return s.Engine.Extend(ctx, s.shift(fn))
}

// Peek implements bmdb.Engine.
func (s *Shift) Peek(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return s.Engine.Peek(ctx, s.shift(fn))
}

// View implements bmdb.Engine.
func (s *Shift) View(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return s.Engine.View(ctx, s.shift(fn))
}
