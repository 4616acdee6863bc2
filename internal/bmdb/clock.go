package bmdb

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
)

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
	return fmt.Sprintf("the clock says %s, %d days after the database was last used", now.Format(time.DateTime), leap/(24*time.Hour))
}

// mayPrune says whether what is old may be removed, and notes that the database was used now.
func (db *DB) mayPrune(ctx context.Context) (bool, error) {
	return read(ctx, db.update, "advance the clock", func(ctx context.Context, t *transaction) (may bool, err error) {
		env, err := t.environment(ctx)
		if err != nil || env.Restored != "" {
			return false, err
		}
		seen, err := t.q.ListClocks(ctx)
		if err != nil || len(seen) == 0 { // the server does not tell which database this is
			return err == nil, err
		}
		if evidence := Leapt(instant(seen[0]), t.Now()); evidence != "" {
			db.logger.WarnContext(ctx, "nothing old is removed, and whatever destroys or reboots waits for `ironherd db accept-restore`",
				slog.String("evidence", evidence))
			return false, t.q.PutRestored(ctx, statement.PutRestoredParams{At: micros(t.Now()), Evidence: evidence})
		}
		return true, t.q.SetClock(ctx, micros(t.Now()))
	})
}
