package sqlite_test

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/ironherd/ironherd/internal/bmdb"
)

// failing is an engine that can be told to fail every extension.
type failing struct {
	bmdb.Engine
	broken atomic.Bool
}

var errBroken = errors.New("broken on purpose")

func (f *failing) Extend(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	if f.broken.Load() {
		return errBroken
	}
	return f.Engine.Extend(ctx, fn)
}
