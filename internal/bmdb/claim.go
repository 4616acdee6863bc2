package bmdb

import (
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
	// NextDue is when the agenda wants to be looked at next: when its next row is due, or sooner where
	// other processes do not tell what they make due; zero when there is no row. It is in the past
	// when Limit left due work behind.
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

// Claim takes due work by rule 2: candidates without locks, their subjects locked (those that
// somebody has are skipped), facts in a later statement, and then lifecycle decides: the work is
// started, or its row is moved. It goes on until the limit is reached or nothing is left.
// ErrLeaseLost when the session has ended. When it fails, no work is held: what had been committed
// already is handed back with the next extension.
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
	c := &claiming{s: s, request: request, scope: scopeOf(request.Process, request.Providers), done: make(map[string]time.Time)}
	done, err := s.db.due.turn(ctx, c.scope, s.db.clock.Elapsed())
	if err != nil {
		return Claim{}, err
	}
	defer done()
	for len(c.works) < request.Limit {
		if !s.trust.open() {
			return Claim{}, fleet.ErrLeaseLost
		}
		candidates, err := c.look(ctx)
		if err != nil {
			return Claim{}, err
		}
		if len(candidates) > 0 {
			if err := c.round(ctx, candidates); err != nil {
				return Claim{}, err // what was found is left for others: no floor may pass it
			}
		}
		c.raiseFloor()
		if len(candidates) == 0 {
			break
		}
	}
	next, err := c.nextDue(ctx)
	if err == nil && s.db.engine.Properties().Untold {
		next = c.soon(next)
	}
	return Claim{Works: c.works, NextDue: next}, err
}

// claiming is one call of Claim.
type claiming struct {
	s       *Session
	request ClaimRequest
	scope   scope
	works   []*Work
	// done are the subjects that were looked at or that somebody else has, with the due_at that they
	// had.
	done map[string]time.Time
	// lowest is the due_at of the first row that was found and not dealt with; zero: none was.
	lowest time.Time
	// scannedTo is the instant before which the last look found everything that is due, after so many
	// changes; zero: it failed.
	scannedTo time.Time
	changes   int
	// looked is the database's time of the last look.
	looked time.Time
	storm
}

// round deals with candidates in one transaction, then with the dead sessions that were found in
// the way.
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
	if err := c.slotted(ctx, r); err != nil {
		return err
	}
	c.s.db.due.met(c.scope, len(r.left)+r.taken, len(candidates))
	for _, a := range candidates {
		c.done[a.subject] = a.dueAt
	}
	for _, a := range slices.Concat(r.left, r.again) {
		c.leave(a)
	}
	for id := range r.overdue { // rule 4: only a death that is a fact frees the lane
		switch ended, err := c.s.db.endSession(ctx, id, causeOverdue, true); {
		case fleet.KindOf(err) == fleet.KindTemporary:
			// A commit of its holder hangs, which its server will end soon. What is claimed meanwhile is not
			// lost for that.
			c.s.db.logger.WarnContext(ctx, "session could not be ended yet", slog.String("session", string(id)), slog.Any("err", err))
			return nil
		case err != nil:
			return fmt.Errorf("end session %s: %w", id, err)
		case !ended:
			continue
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
	t      *transaction
	works  []*Work
	starts []starting
	// deadline of the own session, as of this transaction.
	deadline time.Time
	// overdue sessions hold what is due; again is what to look at once more after their end, or what
	// found no slot.
	overdue map[fleet.SessionID]bool
	again   []candidate
	// left could not be dealt with: somebody else is at it. taken were held by others when it came to
	// them.
	left  []candidate
	taken int
	slotting
}

func (r *claimRound) run(ctx context.Context, candidates []candidate) error {
	if err := r.t.LockSession(ctx, r.s.id, false); err != nil {
		return err
	}
	row, alive, err := r.t.alive(ctx, r.s.id)
	if err != nil {
		return err
	}
	if !alive {
		r.s.trust.lose()
		return fleet.ErrLeaseLost
	}
	r.deadline = instant(row.DeadlineAt)
	if r.request.Process.OfProvider() {
		return r.claimProviders(ctx, candidates)
	}
	return r.claimMachines(ctx, candidates)
}

// starting is work that is about to start.
type starting struct {
	subject  fleet.Subject
	decision lifecycle.Decision
	started  func(w *Work, hold fleet.Hold)
}

// claimMachines asks lifecycle about each machine that nobody has locked, and starts the work or
// moves the row.
func (r *claimRound) claimMachines(ctx context.Context, candidates []candidate) error {
	ids := make([]fleet.MachineID, len(candidates))
	for i, a := range candidates {
		ids[i] = fleet.MachineID(a.subject)
	}
	ids, err := r.t.LockMachines(ctx, ids, true)
	if err != nil {
		return fmt.Errorf("lock machines: %w", err)
	}
	locked := make(map[string]bool, len(ids))
	for _, id := range ids {
		locked[string(id)] = true
	}
	if len(ids) > 1 {
		if err := r.t.prefetch(ctx, ids); err != nil {
			return err
		}
	}
	var looked []*judged
	for _, a := range candidates {
		if !locked[a.subject] {
			r.left = append(r.left, a)
			continue
		}
		j, err := r.lookAtMachine(ctx, a)
		if err != nil {
			return err
		}
		if j != nil {
			looked = append(looked, j)
		}
	}
	if err := r.reserve(ctx, candidates); err != nil {
		return err
	}
	if err := r.startAll(ctx); err != nil {
		return err
	}
	if err := r.occupy(ctx); err != nil {
		return err
	}
	for _, j := range looked {
		if err := r.t.settle(ctx, j); err != nil {
			return err
		}
	}
	return nil
}

// lookAtMachine asks lifecycle about one machine, whose row is locked. Nil when there is none.
func (r *claimRound) lookAtMachine(ctx context.Context, a candidate) (*judged, error) {
	id := fleet.MachineID(a.subject)
	j, err := r.t.load(ctx, id)
	if fleet.KindOf(err) == fleet.KindNotFound {
		return nil, r.t.forget(ctx, id)
	}
	if err != nil {
		return nil, err
	}
	if err := r.t.freeDeadLane(ctx, j); err != nil {
		return nil, err
	}
	plan, err := r.t.plan(ctx, j)
	if err != nil {
		return nil, err
	}
	d := plan.For(r.request.Process)
	if hold, inTheWay := j.record.Holds[fleet.LaneHost]; inTheWay {
		r.inTheWay(a, hold)
	} else if d.Verdict == lifecycle.Due {
		r.starts = append(r.starts, starting{fleet.Subject{Machine: id}, d, func(w *Work, hold fleet.Hold) {
			w.Record, w.known = j.record, j
			j.record.Holds = map[fleet.Lane]fleet.Hold{fleet.LaneHost: hold}
		}})
	}
	return j, nil
}

// claimProviders is the same for work on providers.
func (r *claimRound) claimProviders(ctx context.Context, candidates []candidate) error {
	names := make([]fleet.ProviderName, len(candidates))
	for i, a := range candidates {
		names[i] = a.provider
	}
	names, err := r.t.LockProviders(ctx, names, true)
	if err != nil {
		return err
	}
	var looked []*judgedProvider
	for _, a := range candidates {
		if !slices.Contains(names, a.provider) {
			r.left = append(r.left, a)
			continue
		}
		j, err := r.lookAtProvider(ctx, a)
		if err != nil {
			return err
		}
		looked = append(looked, j)
	}
	if err := r.startAll(ctx); err != nil {
		return err
	}
	for _, j := range looked {
		if err := r.t.settleProvider(ctx, j); err != nil {
			return err
		}
	}
	return nil
}

// lookAtProvider asks lifecycle about one provider, whose row is locked.
func (r *claimRound) lookAtProvider(ctx context.Context, a candidate) (*judgedProvider, error) {
	j, err := r.t.loadProvider(ctx, a.provider)
	if err != nil {
		return nil, err
	}
	if err := r.t.freeDeadLanes(ctx, j); err != nil {
		return nil, err
	}
	decisions, err := r.t.planProvider(ctx, j)
	if err != nil {
		return nil, err
	}
	lane := r.request.Process.Lane()
	for _, d := range decisions {
		if d.Process != r.request.Process {
			continue
		}
		if hold, inTheWay := j.record.Holds[lane]; inTheWay {
			r.inTheWay(a, hold)
		} else if d.Verdict == lifecycle.Due {
			r.starts = append(r.starts, starting{fleet.Subject{Provider: a.provider}, d, func(w *Work, hold fleet.Hold) {
				w.Provider = j.record
				holds := map[fleet.Lane]fleet.Hold{lane: hold}
				for other, h := range j.record.Holds {
					holds[other] = h
				}
				j.record.Holds = holds
			}})
		}
	}
	return j, nil
}

// inTheWay: a holder past its deadline is to be declared dead, and then the subject is looked at
// again; a live one's row is pushed to its deadline by the rewrite.
func (r *claimRound) inTheWay(a candidate, hold fleet.Hold) {
	if hold.Deadline.Before(r.t.Now()) {
		r.overdue[hold.Session] = true
		r.again = append(r.again, a)
		return
	}
	r.taken++
}

// startAll takes the lanes and writes the start of the works.
func (r *claimRound) startAll(ctx context.Context) error {
	if len(r.starts) == 0 {
		return nil
	}
	now, process := r.t.Now(), r.request.Process
	rows := make(statement.Rows, len(r.starts))
	for i, s := range r.starts {
		rows[i] = []any{subjectKey(s.subject), string(process.Lane()), string(r.s.id), string(process), micros(now)}
	}
	epochs, err := r.t.q.TakeLanes(ctx, rows)
	if err != nil {
		return fmt.Errorf("take the lanes: %w", err)
	}
	for _, s := range r.starts {
		epoch := fleet.Epoch(epochs[subjectKey(s.subject)])
		err = r.t.record(ctx, history{
			subject: s.subject, actor: r.s.actor(), process: process, lane: process.Lane(), epoch: epoch, edge: edgeStart,
			event: fleet.EventStarted, detail: s.decision.Reason, session: r.s.id,
		})
		if err != nil {
			return err
		}
		w := r.s.newWork(s.subject, process, epoch, micros(now))
		w.Decision = s.decision
		r.works = append(r.works, w)
		s.started(w, fleet.Hold{
			Session: r.s.id, Component: r.s.opts.Component, Host: r.s.opts.Host, Process: process, Epoch: epoch, Since: now,
			Deadline: r.deadline,
		})
	}
	return nil
}
