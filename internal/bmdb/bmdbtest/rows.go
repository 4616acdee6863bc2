package bmdbtest

import (
	"context"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// exec writes rows past the protocol: what a fault of the database, or of another version, may
// leave. The statement must change something.
func (w *world) exec(query string, args ...any) {
	w.Helper()
	w.must(w.shift.Update(w.ctx, func(ctx context.Context, tx bmdb.Tx) error {
		result, err := tx.ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); n == 0 {
			w.Errorf("%s: nothing was changed", query)
			return err
		}
		return nil
	}))
}

// number reads one number past the protocol.
func (w *world) number(query string, args ...any) (n int64) {
	w.Helper()
	w.must(w.shift.View(w.ctx, func(ctx context.Context, tx bmdb.Tx) error {
		return tx.QueryRowContext(ctx, query, args...).Scan(&n)
	}))
	return n
}

// wantNumber wants a number that is read past the protocol.
func (w *world) wantNumber(want int64, query string, args ...any) {
	w.Helper()
	if got := w.number(query, args...); got != want {
		w.Fatalf("%s %v: %d, want %d", query, args, got, want)
	}
}

// heldLanes counts the lanes that somebody holds, alive or dead.
const heldLanes = `SELECT (SELECT count(*) FROM machine WHERE session <> '') + (SELECT count(*) FROM provider_lane WHERE session <> '')`

// lasting starts a session that outlives the test's moves of time.
func (w *world) lasting(component string) *bmdb.Session {
	w.Helper()
	return w.sessionFor(component, 1000*time.Hour)
}

// nextUpdate claims nothing, and returns in how long an update is due.
func (w *world) nextUpdate(s *bmdb.Session) time.Duration {
	w.Helper()
	c, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessUpdate, Limit: 1})
	w.must(err)
	if len(c.Works) != 0 {
		w.Fatalf("claimed an update of %s, want nothing to be due", c.Works[0].Subject)
	}
	return c.NextDue.Sub(w.now())
}

// wantAbout wants a duration, less what the test itself takes.
func (w *world) wantAbout(what string, got, want time.Duration) {
	w.Helper()
	if got > want || got < want-10*time.Second {
		w.Fatalf("%s: %s, want %s", what, got, want)
	}
}
