package sqlite_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
)

// TestCommitsReachTheDisk: what is acknowledged survives a power cut (I8), so every commit is
// synchronous: FULL, which SQLite calls 2.
func TestCommitsReachTheDisk(t *testing.T) {
	t.Parallel()
	e, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, e)
	for name, run := range map[string]func(context.Context, func(context.Context, bmdb.Tx) error) error{"update": e.Update, "extend": e.Extend} {
		synchronous := -1
		err := run(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
			return tx.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&synchronous)
		})
		if err != nil || synchronous != 2 {
			t.Errorf("%s: synchronous is %d, %v, want 2", name, synchronous, err)
		}
	}
}

// TestAnExtensionEndsWithItsContext: one that cannot be tried, because a transaction hangs, ends
// when its caller gives up, who can then still act within the trust window (rule 5). What was given
// up is not done later.
func TestAnExtensionEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := open(t, filepath.Join(t.TempDir(), "bmdb"))
		defer closed(t, e)
		hang, hung := make(chan struct{}), make(chan error, 1)
		go func() {
			hung <- e.Update(t.Context(), func(context.Context, bmdb.Tx) error {
				<-hang
				return nil
			})
		}()
		synctest.Wait()
		gaveUp := errors.New("the caller gave up")
		ctx, cancel := context.WithCancelCause(t.Context())
		extended, ran := make(chan error, 1), false
		go func() {
			extended <- e.Extend(ctx, func(context.Context, bmdb.Tx) error {
				ran = true
				return nil
			})
		}()
		synctest.Wait()
		cancel(gaveUp)
		synctest.Wait()
		select {
		case err := <-extended:
			if !errors.Is(err, gaveUp) {
				t.Errorf("ended with %v", err)
			}
		default:
			t.Error("an extension outlives its context")
		}
		close(hang)
		if err := <-hung; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if ran {
			t.Error("an extension that was given up ran")
		}
	})
}
