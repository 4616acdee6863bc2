package bmdb

import (
	"context"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/agenda"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// maxPage bounds how many entries of the agenda one statement reads.
const maxPage = 1000

// look is one look at the agenda.
type look struct {
	candidates []candidate
	// at is database time.
	at time.Time
	// to is the instant before which the look found everything; zero: it failed.
	to time.Time
	// next is the first entry that was not due yet; zero: there is none, or it is not known.
	next time.Time
	// cut: the look ended at an entry that was not due yet, and that is none of ours.
	cut bool
	// changes is how many there had been.
	changes int
}

// find looks for the next candidates, longest due first. It reads without locks, from the floor on,
// and in most cases by one statement, which is the only one of a claim that finds nothing.
func (c *claiming) find(ctx context.Context) error {
	if len(c.dead) > 0 { // which makes room
		c.look.candidates, c.look.to, c.dead = c.dead, time.Time{}, nil
		clear(c.full)
		return nil
	}
	floor, changes := c.head.Floor(c.s.db.clock.Elapsed())
	err := c.s.db.peek(ctx, "look for due work", func(ctx context.Context, t *transaction) error {
		c.look, c.counted = look{at: t.Now(), changes: changes}, make(map[fleet.ProviderName][]statement.ListLimitedRow)
		return c.scan(ctx, t, floor)
	})
	if err != nil {
		c.look = look{}
		return err
	}
	return nil
}

// scan pages through the agenda until it has enough candidates, or has come to what is not due yet.
func (c *claiming) scan(ctx context.Context, t *transaction, floor time.Time) error {
	want, now := min(c.request.Limit-len(c.works), maxClaim), micros(t.Now())
	page := statement.ListAgendaParams{Process: string(c.request.Process), AfterDueAt: floorMicros(floor), MaxRows: int64(want + 1)}
	if c.head.Idle() { // the first entry says whether that goes on
		page.MaxRows = 1
	}
	// each page has a snapshot of its own: what moved meanwhile may come again
	seen := make(map[string]bool)
	unfailed := c.request.Kept > 0 && c.roomForFailing() <= 0
	page.Unfailed = bit(unfailed)
	defer func() {
		if unfailed { // no floor may pass those that are not looked at
			c.look.to = time.Time{}
		}
	}()
	for {
		rows, err := c.list(ctx, t, page)
		if err != nil {
			return err
		}
		for _, a := range rows {
			wanted, err := c.wanted(ctx, t, a, now)
			if err != nil {
				return err
			}
			if c.allFull() {
				return nil // whatever is behind it
			}
			switch {
			case a.dueAt > now && !c.head.Covers(a.provider):
				// None behind it is due. Which one is the next of ours is not worth passing all of the others.
				c.look.cut, c.look.to = true, t.Now()
				return nil
			case wanted && a.dueAt > now:
				c.look.next, c.look.to = time.UnixMicro(a.dueAt).UTC(), t.Now()
				return nil
			case wanted && !seen[a.subject]:
				seen[a.subject] = true
				if c.look.candidates = append(c.look.candidates, a); len(c.look.candidates) == want {
					c.look.to = time.UnixMicro(a.dueAt).UTC()
					return nil
				}
			}
		}
		if len(rows) < int(page.MaxRows) {
			c.look.to = t.Now()
			return nil
		}
		last := rows[len(rows)-1]
		page.AfterDueAt, page.AfterSubject, page.MaxRows = last.dueAt, last.subject, maxPage
	}
}

// list reads a page of entries. It leaves out those at places that are known to have no room:
// however many of them are due, a look passes them without their rows.
func (c *claiming) list(ctx context.Context, t *transaction, page statement.ListAgendaParams) (list []candidate, err error) {
	if !limited(c.request.Process) {
		rows, err := t.q.ListAgenda(ctx, page)
		for _, r := range rows {
			list = append(list, candidate{r.Subject, fleet.ProviderName(r.Provider), r.DueAt, ""})
		}
		return list, err
	}
	rows, err := t.q.ListAgendaLimited(ctx, statement.ListAgendaLimitedParams{
		Process: page.Process, AfterDueAt: page.AfterDueAt, AfterSubject: page.AfterSubject, MaxRows: page.MaxRows, Unfailed: page.Unfailed,
		Places: c.fullPlaces(),
	})
	for _, r := range rows {
		list = append(list, candidate{r.Subject, fleet.ProviderName(r.Provider), r.DueAt, r.Location})
	}
	return list, err
}

// wanted says whether an entry is one that this claim asks for and has not dealt with.
func (c *claiming) wanted(ctx context.Context, t *transaction, a candidate, now int64) (bool, error) {
	if at, done := c.done[a.subject]; done && at == a.dueAt || !c.head.Covers(a.provider) {
		return false, nil
	}
	if a.dueAt > now || !limited(c.request.Process) {
		return true, nil
	}
	room, err := c.hasRoom(ctx, t, a)
	if err == nil && !room {
		c.noteLeft(a.dueAt)
	}
	return room, err
}

// floorMicros is the position behind which a scan begins.
func floorMicros(floor time.Time) int64 {
	if floor.IsZero() {
		return 0
	}
	return floor.UnixMicro() - 1
}

// noteLeft notes that an entry was found and is not dealt with.
func (c *claiming) noteLeft(dueAt int64) {
	if c.earliestLeft == 0 || dueAt < c.earliestLeft {
		c.earliestLeft = dueAt
	}
}

// raiseFloor moves the floor of scans to the instant below which the last look left nothing. The
// claim calls it when it has dealt with what the look found. The floor stays agenda.Slack below the
// first entry that was left, and below the time of the look: no look sees what others have written
// and not committed yet.
func (c *claiming) raiseFloor() {
	if c.look.to.IsZero() {
		return
	}
	floor := c.look.at
	if left := time.UnixMicro(c.earliestLeft); c.earliestLeft != 0 && left.Before(floor) {
		floor = left
	}
	if floor = floor.Add(-agenda.Slack); c.look.to.Before(floor) {
		floor = c.look.to
	}
	c.head.Raise(floor, c.look.changes)
}

// next returns when a claim that has come to the end wants to look again.
func (c *claiming) next() time.Time {
	next := c.look.next
	sooner := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	for _, again := range c.full {
		sooner(again)
	}
	if c.busy {
		sooner(c.look.at.Add(agenda.FirstPause))
	}
	if c.look.cut || c.s.db.engine.Properties().Polled {
		sooner(c.look.at.Add(c.head.Pause()))
	}
	return next
}
