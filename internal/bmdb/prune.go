package bmdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// PruneHistory removes the oldest history, at most about limit rows a call where it goes row by
// row, and returns how many it removed: none while the clock is in doubt.
func (db *DB) PruneHistory(ctx context.Context, olderThan time.Duration, limit int) (n int, err error) {
	now, err := db.mayPrune(ctx)
	if err != nil {
		return 0, err
	}
	before := time.Unix(0, 0) // nothing is as old; the engine makes room for what comes all the same
	if !now.IsZero() {
		before = now.Add(-olderThan)
	}
	n, err = db.engine.PruneHistory(ctx, before, limit)
	if err != nil {
		return n, fmt.Errorf("prune history: %w", err)
	}
	return n, nil
}

// PruneSessions is PruneHistory for sessions that ended longer ago than that.
func (db *DB) PruneSessions(ctx context.Context, olderThan time.Duration, limit int) (int, error) {
	return db.prune(ctx, "prune sessions", olderThan, func(ctx context.Context, t *transaction, before int64) (int64, error) {
		return t.q.DeleteEndedSessions(ctx, statement.DeleteEndedSessionsParams{Before: before, MaxRows: int64(limit)})
	})
}

// PruneTokens is PruneHistory for the closed tokens of machines whose rows have gone, and for what
// was asked for of those that never came to be. A device that surfaces with one of them later is
// nobody's.
func (db *DB) PruneTokens(ctx context.Context, olderThan time.Duration, limit int) (int, error) {
	return db.prune(ctx, "prune tokens", olderThan, func(ctx context.Context, t *transaction, before int64) (int64, error) {
		which := statement.DeleteClosedTokensParams{Before: before, MaxRows: int64(limit)}
		machines, err := t.q.ListMachinesOfClosedTokens(ctx, statement.ListMachinesOfClosedTokensParams(which))
		if err != nil {
			return 0, err
		}
		for _, id := range machines {
			if err := t.removeWishes(ctx, id); err != nil {
				return 0, err
			}
		}
		removed, err := t.q.DeleteClosedTokens(ctx, which)
		if err != nil {
			return 0, err
		}
		// And the limits that nobody has called under for long, as with tokens that are out of use.
		return removed, t.q.DeleteOldTurns(ctx, micros(t.Now().Add(-keepTurns)))
	})
}

// removeWishes removes what was asked for of a machine that never came to be. It was kept for a
// device that surfaces with the machine's token.
func (t *transaction) removeWishes(ctx context.Context, machine string) error {
	return errors.Join(t.q.DeleteQuarantine(ctx, machine), t.q.DropInstallRequest(ctx, machine), t.q.DropInstallCancel(ctx, machine), t.q.DropMaintenance(ctx, machine))
}

// PrunePlans is PruneHistory for plans that expired longer ago than that.
func (db *DB) PrunePlans(ctx context.Context, olderThan time.Duration, limit int) (int, error) {
	return db.prune(ctx, "prune plans", olderThan, func(ctx context.Context, t *transaction, before int64) (int64, error) {
		return t.q.DeletePlansBefore(ctx, statement.DeletePlansBeforeParams{Before: before, MaxRows: int64(limit)})
	})
}

// prune removes rows that are older than before, and returns how many there were.
func (db *DB) prune(ctx context.Context, kind string, olderThan time.Duration,
	remove func(ctx context.Context, t *transaction, before int64) (int64, error),
) (int, error) {
	if now, err := db.mayPrune(ctx); err != nil || now.IsZero() {
		return 0, err
	}
	removed, err := read(ctx, db.update, kind, func(ctx context.Context, t *transaction) (int64, error) {
		return remove(ctx, t, micros(t.Now().Add(-olderThan)))
	})
	return int(removed), err
}

// maxLeap is how far the clock may be ahead of what the database has last seen.
const maxLeap = 30 * 24 * time.Hour

// Leapt says that the clock is further ahead of what the database has last seen than it should be,
// or "". Either the clock is wrong, or the database is an old copy, or nobody has used it for so
// long: a person knows. Until somebody has said so (DB.AcceptRestore), nothing is removed for its
// age and nothing on a machine is destroyed.
func Leapt(seen, now time.Time) string {
	leap := now.Sub(seen)
	if leap <= maxLeap {
		return ""
	}
	return fmt.Sprintf("the clock says %s, %d days after the database was last used", fleet.Instant(now), leap/(24*time.Hour))
}

// mayPrune notes that the database was used now, and returns that instant; zero while what is old
// must not be removed.
func (db *DB) mayPrune(ctx context.Context) (time.Time, error) {
	return read(ctx, db.update, "advance the clock", func(ctx context.Context, t *transaction) (none time.Time, err error) {
		env, err := t.environment(ctx)
		if err != nil || env.Restored != "" {
			return none, err
		}
		seen, err := t.q.ListClocks(ctx)
		if err != nil || len(seen) == 0 { // the server does not tell which database this is
			return t.Now(), err
		}
		if evidence := Leapt(instant(seen[0]), t.Now()); evidence != "" {
			db.logger.WarnContext(ctx, "nothing old is removed, and whatever destroys or reboots waits for `ironherd db accept-restore`",
				slog.String("evidence", evidence))
			return none, t.q.PutRestored(ctx, statement.PutRestoredParams{At: micros(t.Now()), Evidence: evidence})
		}
		return t.Now(), t.q.SetClock(ctx, micros(t.Now()))
	})
}
