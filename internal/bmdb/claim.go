package bmdb

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// ClaimRequest asks for work.
type ClaimRequest struct {
	Process fleet.Process
	// Providers whose machines (or which themselves) are wanted; empty: all.
	Providers []fleet.ProviderName
	// Limit is how many works the caller has free slots for.
	Limit int
}

// Claim is the answer.
type Claim struct {
	// Works that are now held by the session; at most Limit, those longest due first.
	Works []*Work
	// NextDue is when the next row of the agenda wants to be looked at; zero when there is none. It is in the past when Limit
	// left due work behind.
	NextDue time.Time
}

// maxClaim bounds how many machines one transaction of a claim locks.
const maxClaim = 100

// candidate is an agenda row, read without locks: a hint.
type candidate struct {
	subject  string
	provider fleet.ProviderName
	dueAt    time.Time
}

// Claim takes due work by rule 2: candidates without locks, their subjects locked (those that somebody has are skipped), facts in a
// later statement, and then lifecycle decides: the work is started, or its row is moved. It goes on until the limit is reached or
// nothing is left. ErrLeaseLost when the session has ended. When it fails, no work is held: what had been committed already is
// handed back with the next extension.
func (s *Session) Claim(ctx context.Context, request ClaimRequest) (Claim, error) {
	s.claimStarts()
	claim, err := s.claim(ctx, request)
	s.claimEnds(claim.Works)
	if err != nil {
		return Claim{}, fmt.Errorf("claim %s: %w", request.Process, err)
	}
	return claim, nil
}

func (s *Session) claimStarts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claiming++
}

func (s *Session) claimEnds(works []*Work) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claiming--
	s.claims++
	for _, w := range works {
		s.works[w.key()] = w
	}
}

func (s *Session) claim(ctx context.Context, request ClaimRequest) (Claim, error) {
	providers, err := s.db.providerNames(ctx, request.Providers)
	if err != nil {
		return Claim{}, err
	}
	c := &claiming{
		s: s, request: request, providers: providers, done: make(map[string]time.Time), lowest: make(map[fleet.ProviderName]time.Time),
	}
	for len(c.works) < request.Limit {
		if !s.trust.open() {
			return Claim{}, fleet.ErrLeaseLost
		}
		candidates, err := c.look(ctx)
		if err != nil {
			return Claim{}, err
		}
		if len(candidates) == 0 {
			c.raiseFloors()
			break
		}
		if err := c.round(ctx, candidates); err != nil {
			return Claim{}, err // what was found is left for others: no floor may pass it
		}
		c.raiseFloors()
	}
	next, err := c.nextDue(ctx)
	return Claim{Works: c.works, NextDue: next}, err
}

// providerNames returns the names asked for, or all.
func (db *DB) providerNames(ctx context.Context, names []fleet.ProviderName) ([]fleet.ProviderName, error) {
	if len(names) > 0 {
		return names, nil
	}
	err := db.view(ctx, "provider names", func(ctx context.Context, t *transaction) error {
		rows, err := t.q.ListProviders(ctx)
		names = make([]fleet.ProviderName, len(rows))
		for i, r := range rows {
			names[i] = fleet.ProviderName(r.Name)
		}
		return err
	})
	return names, err
}

// claiming is one call of Claim.
type claiming struct {
	s         *Session
	request   ClaimRequest
	providers []fleet.ProviderName
	works     []*Work
	// done are the subjects that were looked at or that somebody else has, with the due_at that they had.
	done map[string]time.Time
	// lowest is, per provider, the due_at of the first row that was found and not dealt with.
	lowest map[fleet.ProviderName]time.Time
	// scanned are the heads of which the last look has found everything that is due, and when.
	scanned map[headKey]time.Time
}

// look returns the next candidates, longest due first, across the providers.
func (c *claiming) look(ctx context.Context) (candidates []candidate, err error) {
	want := min(c.request.Limit-len(c.works), maxClaim)
	err = c.s.db.view(ctx, "look for due work", func(ctx context.Context, t *transaction) error {
		candidates, c.scanned = candidates[:0], make(map[headKey]time.Time)
		for _, provider := range c.providers {
			k := headKey{c.request.Process, provider}
			floor := c.s.db.due.floor(k, c.s.db.clock.Elapsed())
			found, err := c.lookAt(ctx, t, provider, floor, want)
			if err != nil {
				return err
			}
			if len(found) < want {
				c.scanned[k] = t.Now()
			}
			candidates = append(candidates, found...)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the agenda: %w", err)
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int {
		return cmp.Or(a.dueAt.Compare(b.dueAt), cmp.Compare(a.subject, b.subject))
	})
	for _, a := range candidates[min(len(candidates), want):] {
		c.leave(a)
	}
	return candidates[:min(len(candidates), want)], nil
}

// leave notes that a row was found and is not dealt with.
func (c *claiming) leave(a candidate) {
	if at, ok := c.lowest[a.provider]; !ok || a.dueAt.Before(at) {
		c.lowest[a.provider] = a.dueAt
	}
}

// lookAt pages through the due rows of one provider until it has enough that were not dealt with yet.
func (c *claiming) lookAt(ctx context.Context, t *transaction, provider fleet.ProviderName, floor time.Time, want int) ([]candidate, error) {
	var found []candidate
	after := statement.ListDueAfterParams{
		Process: string(c.request.Process), Provider: string(provider), AfterDueAt: floorMicros(floor), Now: micros(t.Now()),
		MaxRows: int64(want),
	}
	for {
		rows, err := t.q.ListDueAfter(ctx, after)
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			dueAt := time.UnixMicro(r.DueAt).UTC()
			if at, done := c.done[r.Subject]; !done || !at.Equal(dueAt) {
				found = append(found, candidate{r.Subject, provider, dueAt})
			}
		}
		if len(rows) < want || len(found) >= want {
			return found[:min(len(found), want)], nil
		}
		last := rows[len(rows)-1]
		after.AfterDueAt, after.AfterSubject = last.DueAt, last.Subject
	}
}

// floorMicros: an agenda row may be due before 1970 ("at once"), so the absent floor is below everything.
func floorMicros(floor time.Time) int64 {
	if floor.IsZero() {
		return time.Time{}.UnixMicro()
	}
	return floor.UnixMicro()
}

// raiseFloors is called when what the last look found has been dealt with: below the floors nothing is left but what was not dealt
// with, and what nobody could see yet.
func (c *claiming) raiseFloors() {
	for k, floor := range c.scanned {
		if at, ok := c.lowest[k.provider]; ok && at.Before(floor) {
			floor = at
		}
		c.s.db.due.raise(k, floor)
	}
}

// round deals with candidates in one transaction, then with the dead sessions that were found in the way.
func (c *claiming) round(ctx context.Context, candidates []candidate) error {
	var r *claimRound
	err := c.s.db.update(ctx, "claim", func(ctx context.Context, t *transaction) error {
		r = &claimRound{claiming: c, t: t, overdue: make(map[fleet.SessionID]bool)}
		return r.run(ctx, candidates)
	})
	if err != nil {
		return err
	}
	c.works = append(c.works, r.works...)
	for _, a := range candidates {
		c.done[a.subject] = a.dueAt
	}
	for _, a := range slices.Concat(r.left, r.again) {
		c.leave(a)
	}
	for id := range r.overdue { // rule 4: only a death that is a fact frees the lane
		if _, err := c.s.db.endSession(ctx, id, causeOverdue, true); err != nil {
			return fmt.Errorf("end session %s: %w", id, err)
		}
		c.s.db.logger.InfoContext(ctx, "session ended", slog.String("session", string(id)), slog.String("cause", causeOverdue))
	}
	for _, a := range r.again {
		delete(c.done, a.subject)
	}
	return nil
}

// claimRound is one transaction of a claim.
type claimRound struct {
	*claiming
	t     *transaction
	works []*Work
	// deadline of the own session, as of this transaction.
	deadline time.Time
	// overdue sessions hold what is due; again is what to look at once more after their end.
	overdue map[fleet.SessionID]bool
	again   []candidate
	// left could not be dealt with: somebody else is at it.
	left []candidate
}

func (r *claimRound) run(ctx context.Context, candidates []candidate) error {
	if err := r.t.LockSession(ctx, r.s.id, false); err != nil {
		return err
	}
	row, err := r.t.q.GetSession(ctx, string(r.s.id))
	if absent(err) || err == nil && row.EndedAt != 0 {
		r.s.trust.lose()
		return fleet.ErrLeaseLost
	}
	if err != nil {
		return fmt.Errorf("read session %s: %w", r.s.id, err)
	}
	r.deadline = instant(row.DeadlineAt)
	if r.request.Process.OfProvider() {
		return r.claimProviders(ctx, candidates)
	}
	ids := make([]fleet.MachineID, len(candidates))
	for i, a := range candidates {
		ids[i] = fleet.MachineID(a.subject)
	}
	ids, err = r.t.LockMachines(ctx, ids, true)
	if err != nil {
		return fmt.Errorf("lock machines: %w", err)
	}
	locked := make(map[string]bool, len(ids))
	for _, id := range ids {
		locked[string(id)] = true
	}
	for _, a := range candidates {
		if !locked[a.subject] {
			r.left = append(r.left, a)
			continue
		}
		if err := r.claimMachine(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// claimMachine asks lifecycle about one machine, whose row is locked, and starts the work or moves its row.
func (r *claimRound) claimMachine(ctx context.Context, a candidate) error {
	id := fleet.MachineID(a.subject)
	j, err := r.t.load(ctx, id)
	if fleet.KindOf(err) == fleet.KindNotFound {
		return r.t.forget(ctx, id)
	}
	if err != nil {
		return err
	}
	if err := r.t.freeDeadLane(ctx, j); err != nil {
		return err
	}
	plan, err := r.t.plan(ctx, j)
	if err != nil {
		return err
	}
	d := plan.For(r.request.Process)
	if hold, inTheWay := j.record.Holds[fleet.LaneHost]; inTheWay {
		r.inTheWay(a, hold)
	} else if d.Verdict == lifecycle.Due {
		w, hold, err := r.start(ctx, fleet.Subject{Machine: id}, d)
		if err != nil {
			return err
		}
		w.Record = j.record
		j.record.Holds = map[fleet.Lane]fleet.Hold{fleet.LaneHost: hold}
	}
	return r.t.settle(ctx, j)
}

// claimProviders is the same for work on providers.
func (r *claimRound) claimProviders(ctx context.Context, candidates []candidate) error {
	l := locks{}
	for _, a := range candidates {
		l.add(parseSubject(a.subject))
	}
	if err := l.take(ctx, r.t); err != nil {
		return err
	}
	for _, a := range candidates {
		j, err := r.t.loadProvider(ctx, a.provider)
		if err != nil {
			return err
		}
		if err := r.t.freeDeadLanes(ctx, j); err != nil {
			return err
		}
		decisions, err := r.t.planProvider(ctx, j)
		if err != nil {
			return err
		}
		lane := r.request.Process.Lane()
		for _, d := range decisions {
			if d.Process != r.request.Process {
				continue
			}
			if hold, inTheWay := j.record.Holds[lane]; inTheWay {
				r.inTheWay(a, hold)
			} else if d.Verdict == lifecycle.Due {
				w, hold, err := r.start(ctx, fleet.Subject{Provider: a.provider}, d)
				if err != nil {
					return err
				}
				w.Provider = j.record
				holds := map[fleet.Lane]fleet.Hold{lane: hold}
				for other, h := range j.record.Holds {
					holds[other] = h
				}
				j.record.Holds = holds
			}
		}
		if err := r.t.settleProvider(ctx, j); err != nil {
			return err
		}
	}
	return nil
}

// inTheWay: a holder past its deadline is to be declared dead, and then the subject is looked at again; a live one's row is
// pushed to its deadline by the rewrite.
func (r *claimRound) inTheWay(a candidate, hold fleet.Hold) {
	if hold.Deadline.Before(r.t.Now()) {
		r.overdue[hold.Session] = true
		r.again = append(r.again, a)
	}
}

// start takes the lane and writes the start of the work.
func (r *claimRound) start(ctx context.Context, subject fleet.Subject, d lifecycle.Decision) (*Work, fleet.Hold, error) {
	lane, now := d.Process.Lane(), r.t.Now()
	epoch, err := r.t.q.TakeLane(ctx, statement.TakeLaneParams{
		Subject: subjectKey(subject), Lane: string(lane), Session: string(r.s.id), Process: string(d.Process), Since: micros(now),
	})
	if err != nil {
		return nil, fleet.Hold{}, fmt.Errorf("take the %s lane of %s: %w", lane, subject, err)
	}
	err = r.t.record(ctx, history{
		subject: subject, actor: r.s.actor(), process: d.Process, lane: lane, epoch: fleet.Epoch(epoch), edge: edgeStart,
		event: eventStarted, detail: d.Reason, session: r.s.id,
	})
	if err != nil {
		return nil, fleet.Hold{}, err
	}
	w := r.s.newWork(subject, d.Process, fleet.Epoch(epoch), micros(now))
	w.Decision = d
	r.works = append(r.works, w)
	return w, fleet.Hold{
		Session: r.s.id, Component: r.s.opts.Component, Host: r.s.opts.Host, Process: d.Process, Epoch: w.Epoch, Since: now,
		Deadline: r.deadline,
	}, nil
}

// nextDue reads when the agenda wants to be looked at next, and remembers it for the wake-ups.
func (c *claiming) nextDue(ctx context.Context) (next time.Time, err error) {
	heads := make(map[headKey]time.Time, len(c.providers))
	err = c.s.db.view(ctx, "next due", func(ctx context.Context, t *transaction) error {
		next = time.Time{}
		for _, provider := range c.providers {
			k := headKey{c.request.Process, provider}
			floor := c.s.db.due.floor(k, c.s.db.clock.Elapsed())
			rows, err := t.q.NextDue(ctx, statement.NextDueParams{
				Process: string(k.process), Provider: string(provider), Lowest: floorMicros(floor),
			})
			if err != nil {
				return err
			}
			heads[k] = time.Time{}
			if len(rows) == 0 {
				continue
			}
			heads[k] = time.UnixMicro(rows[0]).UTC()
			if next.IsZero() || heads[k].Before(next) {
				next = heads[k]
			}
		}
		return nil
	})
	for k, at := range heads {
		c.s.db.due.told(k, at)
	}
	return next, err
}
