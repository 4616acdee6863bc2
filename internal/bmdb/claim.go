package bmdb

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/agenda"
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
	// Kept is how many of them are kept for machines that have not failed lately: at most Limit - Kept
	// works are of machines of which Work.Failing is true. The others stay due. Only for processes of
	// machines.
	Kept int
}

// Claim is the answer.
type Claim struct {
	// Works that are now held by the session; at most Limit, those longest due first.
	Works []*Work
	// NextDue is when the agenda wants to be looked at next: when its next entry is due, or sooner
	// where other processes do not tell what they make due, and where only some providers are wanted;
	// zero when there is no entry. It is in the past when due work was left behind.
	NextDue time.Time
}

// maxClaim bounds how many machines one transaction of a claim locks.
const maxClaim = 100

// candidate is an entry of the agenda, read without locks: a hint.
type candidate struct {
	subject  string
	provider fleet.ProviderName
	dueAt    int64
	// location of the machine, for a process whose number is limited.
	location string
}

// Claim takes due work by rule 2: candidates without locks, their subjects locked (those that
// somebody has are skipped), facts in a later statement, and then lifecycle decides: the work is
// started, or its entry is moved. It goes on until the limit is reached or nothing is left.
// ErrLeaseLost when the session has ended. When it fails, no work is held: what had been committed
// already is handed back with the next extension.
func (s *Session) Claim(ctx context.Context, request ClaimRequest) (Claim, error) {
	c := &claiming{s: s, request: request, done: make(map[string]int64), full: make(map[place]time.Time)}
	c.head = s.db.heads.Head(request.Process, request.Providers, s.db.clock.Elapsed())
	s.claimStarts()
	defer s.claimEnds()
	claim, err := c.run(ctx)
	if err != nil {
		for _, w := range c.works { // the next extension hands them back
			s.noteMaybeHeld(keyOf(w.Subject))
			s.letGo(w)
		}
		return Claim{}, err
	}
	return claim, nil
}

// claiming is one call of Claim.
type claiming struct {
	s       *Session
	request ClaimRequest
	head    *agenda.Head
	works   []*Work
	// worksFailing is how many of the works are of machines that failed lately.
	worksFailing int
	// done are the subjects that were dealt with, with the instants of their entries.
	done map[string]int64
	// earliestLeft is the earliest instant of what was found and not dealt with; 0: nothing was. busy
	// says that somebody was at some of it, who may be done by now.
	earliestLeft int64
	busy         bool
	// full are the places at which no more of the process may start, with when to look again.
	full map[place]time.Time
	// counted are what counts against the limits of a provider, as the newest look has found it.
	counted map[fleet.ProviderName][]statement.ListLimitedRow
	// providers are those at which work of a limited process may start; read when it is needed.
	providers []fleet.ProviderName
	// dead are machines of such providers whose holders are dead: freeing them makes room.
	dead []candidate
	look look
}

func (c *claiming) run(ctx context.Context) (Claim, error) {
	unlock, err := c.head.Lock(ctx)
	if err != nil {
		return Claim{}, err
	}
	defer unlock()
	for len(c.works) < c.request.Limit {
		if !c.s.window.Open() {
			return Claim{}, fleet.ErrLeaseLost
		}
		if err := c.find(ctx); err != nil {
			return Claim{}, err
		}
		if len(c.look.candidates) == 0 && len(c.dead) > 0 {
			continue // the look found out who is in the way
		}
		if len(c.look.candidates) == 0 {
			c.head.Found(len(c.done) > 0)
			c.raiseFloor()
			return Claim{Works: c.works, NextDue: c.next()}, nil
		}
		if err := c.round(ctx, c.look.candidates); err != nil {
			return Claim{}, err // what was found is left for others: no floor may pass it
		}
		c.raiseFloor()
	}
	c.head.Found(true)
	return Claim{Works: c.works, NextDue: c.look.at}, nil // there may be more at once
}

// round deals with candidates in one transaction, then with the dead sessions that were in the way.
func (c *claiming) round(ctx context.Context, candidates []candidate) error {
	var r *claimRound
	err := c.s.db.update(ctx, "claim", func(ctx context.Context, t *transaction) error {
		r = &claimRound{claiming: c, t: t, overdue: make(map[fleet.SessionID][]candidate), full: make(map[place]time.Time)}
		return r.run(ctx, candidates)
	})
	if err != nil {
		for _, a := range candidates { // it may have been committed
			c.s.noteMaybeHeld(a.subject)
		}
		return err
	}
	c.works = append(c.works, r.works...)
	for _, w := range r.works {
		if w.Failing() {
			c.worksFailing++
		}
	}
	c.s.remember(r.works)
	for _, a := range candidates {
		c.done[a.subject] = a.dueAt
	}
	for place, until := range r.full {
		c.full[place] = until
	}
	for _, a := range r.left {
		c.noteLeft(a.dueAt)
	}
	c.busy = c.busy || r.busy
	again := r.again
	for id, held := range r.overdue { // rule 4: only a death that is a fact frees the lane
		over, err := c.endOverdue(ctx, id)
		if err != nil {
			return err
		}
		if over {
			again = append(again, held...)
		}
	}
	for _, a := range again {
		delete(c.done, a.subject)
	}
	return nil
}

// endOverdue ends a session that is in the way past its deadline. over is false for one whose
// commit hangs: it is left for now, with what it holds. Its server ends it soon, and what was
// claimed meanwhile is not lost for that.
func (c *claiming) endOverdue(ctx context.Context, id fleet.SessionID) (over bool, err error) {
	ended, err := c.s.db.endSession(ctx, id, causeOverdue, true)
	switch {
	case lockedByOthers(err):
		c.busy = true
		c.s.db.logger.WarnContext(ctx, "session could not be ended yet", slog.String("session", string(id)), slog.Any("err", err))
		return false, nil
	case err != nil:
		return false, err
	case ended:
		c.s.db.logger.InfoContext(ctx, "session ended", slog.String("session", string(id)), slog.String("cause", causeOverdue))
	}
	return true, nil
}

// claimRound is one transaction of a claim.
type claimRound struct {
	claiming *claiming
	t        *transaction
	works    []*Work
	starts   []start
	// deadline of the own session, as of this transaction.
	deadline int64
	// overdue sessions hold what is due: it is looked at once more after their end.
	overdue map[fleet.SessionID][]candidate
	// again had no room, and is looked at once more where there is some.
	again []candidate
	// left could not be dealt with: somebody else is at it, or there is no room for more.
	left []candidate
	busy bool // somebody else is at it
	// startsFailing is how many of the starts are of machines that failed lately.
	startsFailing int
	// full are the places that were found to have no room, with when to look again.
	full map[place]time.Time
}

// start is work that is about to start: it takes the lane.
type start struct {
	candidate candidate
	decision  lifecycle.Decision
	machine   *machineRecord
	provider  *providerRecord
}

func (r *claimRound) run(ctx context.Context, candidates []candidate) error {
	s := r.claiming.s
	if err := r.t.LockSession(ctx, s.id, false); err != nil {
		return err
	}
	row, alive, err := r.t.alive(ctx, s.id)
	if err != nil {
		return err
	}
	if !alive {
		s.window.Close(fleet.ErrLeaseLost)
		return fleet.ErrLeaseLost
	}
	r.deadline = row.DeadlineAt
	if r.claiming.request.Process.OfProvider() {
		return r.claimProviders(ctx, candidates)
	}
	return r.claimMachines(ctx, candidates)
}

// claimMachines asks lifecycle about each machine that nobody has locked, and starts the work or
// moves its entry.
func (r *claimRound) claimMachines(ctx context.Context, candidates []candidate) error {
	ids := converted(candidates, func(a candidate) fleet.MachineID { return fleet.MachineID(a.subject) })
	locked, err := r.t.LockMachines(ctx, ids, true)
	if err != nil {
		return err
	}
	// those that are not locked, only to learn whether they are there
	machines, err := r.t.loadAll(ctx, ids)
	if err != nil {
		return err
	}
	var judged []*machineRecord
	for _, a := range candidates {
		id := fleet.MachineID(a.subject)
		m, there := machines[id]
		if !there || slices.Contains(locked, id) && m.due[r.claiming.request.Process] != a.dueAt {
			r.removeStale(a)
		}
		if !there {
			continue
		}
		if !slices.Contains(locked, id) {
			r.left, r.busy = append(r.left, a), true
			continue
		}
		r.t.freeDeadLane(m)
		plan, err := r.t.judge(ctx, m)
		if err != nil {
			return err
		}
		r.decide(&m.lane, start{candidate: a, decision: plan.For(r.claiming.request.Process), machine: m})
		judged = append(judged, m)
	}
	if err := r.admit(ctx); err != nil {
		return err
	}
	r.startAll()
	for _, m := range judged {
		if err := r.t.derive(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// removeStale removes an entry that disagrees with the row of its subject. A candidate that is not
// from the agenda has none.
func (r *claimRound) removeStale(a candidate) {
	r.t.move(r.claiming.request.Process, a.subject, a.provider, a.dueAt, 0)
}

// decide starts what is due and free. A holder past its deadline is to be declared dead, and then
// the subject is looked at again. What a live one holds is left: derive moves its entry.
func (r *claimRound) decide(l *lane, s start) {
	hold, held := l.hold()
	switch {
	case held && hold.Deadline.Before(r.t.Now()):
		r.overdue[hold.Session] = append(r.overdue[hold.Session], s.candidate)
		r.left = append(r.left, s.candidate)
	case !held && s.decision.Verdict == lifecycle.Due:
		if s.machine != nil && failedLately(&s.machine.facts, r.claiming.request.Process) {
			if r.startsFailing >= r.claiming.roomForFailing() {
				r.left = append(r.left, s.candidate)
				return
			}
			r.startsFailing++
		}
		r.starts = append(r.starts, s)
	}
}

// roomForFailing is how many more machines that failed lately the claim may take.
func (c *claiming) roomForFailing() int { return c.request.Limit - c.request.Kept - c.worksFailing }

// failedLately reports whether the process failed at a machine, and has not succeeded since.
func failedLately(record *fleet.Record, process fleet.Process) bool {
	return record.Backoffs[process].Cause != ""
}

// claimProviders does with providers what claimMachines does with machines. How many of them have
// work at once has no limit.
func (r *claimRound) claimProviders(ctx context.Context, candidates []candidate) error {
	process := r.claiming.request.Process
	names := converted(candidates, func(a candidate) fleet.ProviderName { return a.provider })
	locked, err := r.t.LockProviders(ctx, names, true)
	if err != nil {
		return err
	}
	var judged []*providerRecord
	for _, a := range candidates {
		p, err := r.t.loadProvider(ctx, a.provider)
		if fleet.KindOf(err) == fleet.KindNotFound {
			r.removeStale(a)
			continue
		}
		if err != nil {
			return err
		}
		if !slices.Contains(locked, a.provider) {
			r.left, r.busy = append(r.left, a), true
			continue
		}
		if p.lanes[process].due != a.dueAt {
			r.removeStale(a)
		}
		r.t.freeDeadLanes(p)
		plan, err := r.t.judgeProvider(ctx, p)
		if err != nil {
			return err
		}
		r.decide(&p.lanes[process].lane, start{candidate: a, decision: plan[process], provider: p})
		judged = append(judged, p)
	}
	r.startAll()
	for _, p := range judged {
		if err := r.t.deriveProvider(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// startAll takes the lanes.
func (r *claimRound) startAll() {
	s, process, now := r.claiming.s, r.claiming.request.Process, micros(r.t.Now())
	for _, start := range r.starts {
		var subject fleet.Subject
		var l *lane
		if start.machine != nil {
			subject, l = fleet.Subject{Machine: start.machine.facts.ID}, &start.machine.lane
			r.t.buffer.machine(start.machine)
		} else {
			subject, l = fleet.Subject{Provider: start.provider.facts.Name}, &start.provider.lanes[process].lane
			r.t.buffer.lane(start.provider.lanes[process])
		}
		l.take(s, process, now, start.decision.Reason, r.deadline)
		w := s.newWork(subject, process, l.epoch, now)
		w.Decision = start.decision
		if start.machine != nil {
			w.Record = start.machine.facts
		} else {
			w.Provider = start.provider.facts
		}
		r.works = append(r.works, w)
	}
}
