package bmdb_test

import (
	"context"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
)

// slow is an engine whose replies to extensions come late.
type slow struct {
	bmdb.Engine
	by time.Duration
}

func (s slow) Extend(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	err := s.Engine.Extend(ctx, fn)
	time.Sleep(s.by)
	return err
}

// TestTrustCountsFromTheStart: the database's deadline counts from when the statement arrived, and
// nobody here knows when that was; so the window counts from when it was sent, however late the
// reply.
func TestTrustCountsFromTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const late = 2 * time.Second
		db, err := bmdb.Open(t.Context(), slow{open(t, filepath.Join(t.TempDir(), "bmdb")), late}, bmdb.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer closed(t, db)
		s, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: "a", Lease: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		for _, extend := range []bool{false, true} {
			if extend {
				if err := s.Extend(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now().Add(-late)
			if extend {
				guarded, cancel := s.Guard(t.Context())
				defer cancel()
				<-guarded.Done()
				if got := time.Since(began); got != 8*time.Second {
					t.Fatalf("trusted for %s from the start of the extension, want 8s", got)
				}
			}
		}
	})
}
