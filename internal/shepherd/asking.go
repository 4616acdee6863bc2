package shepherd

import (
	"context"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/provider"
)

// Asking returns a context for the question whether a machine is there still, of work that nobody
// asked for. It is a new question, and the same one as before where the work has failed since: a
// provider may take longer than one try to find out.
func Asking(ctx context.Context, db *bmdb.DB, work *bmdb.Work) (context.Context, error) {
	since := work.Record.Backoffs[work.Process].Since
	if since.IsZero() {
		return provider.WithAskedFor(ctx, 0), nil
	}
	now, err := db.Now(ctx)
	return provider.WithAskedFor(ctx, now.Sub(since)), err
}
