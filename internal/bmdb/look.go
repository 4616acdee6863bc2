package bmdb

import (
	"context"
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// look returns the next candidates, longest due first: in most cases by one statement, which is the
// only one of an idle claim.
func (c *claiming) look(ctx context.Context) (candidates []candidate, err error) {
	want := min(c.request.Limit-len(c.works), maxClaim)
	floor, changes := c.s.db.due.floor(c.scope, c.s.db.clock.Elapsed())
	err = c.s.db.glance(ctx, "look for due work", func(ctx context.Context, t *transaction) (err error) {
		c.looked, c.scannedTo, c.changes = t.Now(), time.Time{}, changes
		for more := true; more && err == nil; {
			if candidates, c.scannedTo, err = c.page(ctx, t, floor, want*(1+c.s.db.due.crowd(c.scope))); err != nil {
				break
			}
			candidates, more, err = c.admit(ctx, t, candidates)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the agenda: %w", err)
	}
	return c.share(candidates, want), nil
}

// share is a run of what was found, of the length that is wanted: any one where there is a crowd,
// so that not everybody is after the same rows, and the longest due where there is none.
func (c *claiming) share(found []candidate, want int) []candidate {
	if len(found) <= want {
		return found
	}
	runs := (len(found) + want - 1) / want
	from := min(int(c.s.db.jitter()*float64(runs)), runs-1) * want
	to := min(from+want, len(found))
	for i, a := range found {
		if i < from || i >= to {
			c.leave(a)
		}
	}
	return found[from:to]
}

// page pages through the due rows until it has enough that are wanted and were not dealt with yet.
// Of those that are due before to, it has found all: where there are no more, that is now.
func (c *claiming) page(ctx context.Context, t *transaction, floor time.Time, want int) (found []candidate, to time.Time, err error) {
	if len(c.full) > 0 {
		return c.pageBeside(ctx, t, floor, want)
	}
	after := statement.ListDueAfterParams{
		Process: string(c.request.Process), AfterDueAt: floorMicros(floor), Now: micros(t.Now()), MaxRows: int64(want),
	}
	var before map[string]bool
	for {
		rows, err := t.q.ListDueAfter(ctx, after)
		if err != nil {
			return nil, to, err
		}
		for _, r := range rows {
			dueAt := time.UnixMicro(r.DueAt).UTC()
			if at, done := c.done[r.Subject]; done && at.Equal(dueAt) || !c.scope.covers(fleet.ProviderName(r.Provider)) || before[r.Subject] {
				continue
			}
			if found = append(found, candidate{r.Subject, fleet.ProviderName(r.Provider), dueAt}); len(found) == want {
				return found, dueAt, nil
			}
		}
		if len(rows) < int(after.MaxRows) {
			return found, t.Now(), nil
		}
		if before == nil { // each page is of an instant of its own: what moved meanwhile may come again
			before = make(map[string]bool)
		}
		for _, a := range found {
			before[a.subject] = true
		}
		last := rows[len(rows)-1]
		after.AfterDueAt, after.AfterSubject, after.MaxRows = last.DueAt, last.Subject, maxClaim
	}
}

// floorMicros: an agenda row may be due before 1970 ("at once"), so the absent floor is below
// everything.
func floorMicros(floor time.Time) int64 {
	if floor.IsZero() {
		return time.Time{}.UnixMicro()
	}
	return floor.UnixMicro()
}

// leave notes that a row was found and is not dealt with.
func (c *claiming) leave(a candidate) {
	if c.lowest.IsZero() || a.dueAt.Before(c.lowest) {
		c.lowest = a.dueAt
	}
}

// raiseFloor is called when what the last look found has been dealt with: below the floor nothing
// is left but what was not dealt with, and what nobody could see yet. While work remains it rises
// behind what was claimed, so that no look passes the entries of the index that earlier ones left
// dead, which nobody can remove while somebody sees the past.
func (c *claiming) raiseFloor() {
	if c.scannedTo.IsZero() {
		return
	}
	moving := c.looked // what others are about to change, here or further below
	if !c.lowest.IsZero() && c.lowest.Before(moving) {
		moving = c.lowest
	}
	floor := moving.Add(-floorSlack)
	if c.scannedTo.Before(floor) {
		floor = c.scannedTo
	}
	c.s.db.due.raise(c.scope, floor, c.changes)
}

// soon is what an untold claimer waits for: the next row that it knows of, or a moment that is the
// longer the less it finds.
func (c *claiming) soon(next time.Time) time.Time {
	at := c.looked.Add(c.s.db.due.patience(c.scope, len(c.done) > 0))
	if next.IsZero() || at.Before(next) {
		return at
	}
	return next
}

// nextDue returns when the agenda wants to be looked at next, and remembers it for the wake-ups and
// for claims that find nothing.
func (c *claiming) nextDue(ctx context.Context) (next time.Time, err error) {
	if len(c.works) >= c.request.Limit { // there may be more at once
		c.s.db.due.forgetNext(c.scope)
		return c.looked, nil
	}
	if len(c.done) == 0 {
		if next, known := c.s.db.due.next(c.scope, c.looked); known {
			return next, nil
		}
	}
	floor, changes := c.s.db.due.floor(c.scope, c.s.db.clock.Elapsed())
	err = c.s.db.glance(ctx, "next due", func(ctx context.Context, t *transaction) (err error) {
		next, err = c.firstRow(ctx, t, floor)
		return err
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("read the agenda: %w", err)
	}
	return c.s.db.due.told(c.scope, next, changes, c.looked), nil
}

// maxPages bounds how far nextDue looks past rows of providers that nobody here asks for.
const maxPages = 10

// firstRow returns when the first row that is wanted is due; zero when there is none. After too
// many of others it says when those are.
func (c *claiming) firstRow(ctx context.Context, t *transaction, floor time.Time) (time.Time, error) {
	if len(c.full) > 0 {
		return c.firstBeside(ctx, t, floor)
	}
	after := statement.ListNextAfterParams{Process: string(c.request.Process), AfterDueAt: floorMicros(floor), MaxRows: 1}
	var last statement.ListNextAfterRow
	for range maxPages {
		rows, err := t.q.ListNextAfter(ctx, after)
		if err != nil {
			return time.Time{}, err
		}
		for _, r := range rows {
			if last = r; c.scope.covers(fleet.ProviderName(r.Provider)) {
				return time.UnixMicro(r.DueAt).UTC(), nil
			}
		}
		if len(rows) < int(after.MaxRows) {
			return time.Time{}, nil
		}
		after.AfterDueAt, after.AfterSubject, after.MaxRows = last.DueAt, last.Subject, maxClaim
	}
	return time.UnixMicro(last.DueAt).UTC(), nil
}
