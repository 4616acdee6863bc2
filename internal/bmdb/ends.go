package bmdb

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	// maxEnds bounds how many works one transaction ends.
	maxEnds = 200
	// endsTimeout bounds that transaction. It is nobody's own, so no caller's context may end it.
	endsTimeout = 10 * time.Second
)

// ends are the works of a session that end at the moment. Those that come while others are being
// committed wait for them, and are then committed together, by statements about all of them:
// acknowledgements ride together, and one that is alone waits for nobody.
//
// A group never waits for a machine that somebody else has, and takes none along whose lane is not
// ours any more: these, and all when the group as a whole fails, are committed one by one by their
// own callers, who learn there what is wrong. So each fails alone, and whoever is not sure whether
// the group was committed finds out as after any lost reply.
type ends struct {
	mu sync.Mutex
	// busy while somebody commits; waiting are those who came since.
	busy    bool
	waiting []*endOfWork
}

// endOfWork is one end that rides with others.
type endOfWork struct {
	work    *Work
	ending  ending
	changes []Change
	// turn is closed when the group is over, or receives the group that this caller is to commit.
	turn chan []*endOfWork
	// done says that the group has committed this end.
	done bool
	// machine as it is known with its row locked, and then as this end leaves it, unless changes were
	// applied.
	machine *judged
}

func (m *endOfWork) lane() []any {
	w := m.work
	return []any{subjectKey(w.Subject), string(w.Process.Lane()), int64(w.Epoch), m.machine.row.LaneRevision}
}

// ridesAlong says whether an end concerns nothing but its own machine, and has nothing to tell its
// caller: a caller that gave up waiting must not be written to.
func ridesAlong(w *Work, changes []Change) ([]Change, bool) {
	if w.Subject.Machine == "" {
		return nil, false
	}
	own := make([]Change, len(changes))
	for i, c := range changes {
		simple, ok := c.(*change)
		if !ok || simple.find != nil || len(simple.machines) > 0 || simple.again != nil {
			return nil, false
		}
		copied := *simple
		own[i] = &copied
	}
	return own, true
}

// commitEnd ends one work, together with others where that helps.
func (s *Session) commitEnd(ctx context.Context, w *Work, e ending, changes []Change) error {
	own, ok := ridesAlong(w, changes)
	if !ok {
		return w.endAlone(ctx, e, changes)
	}
	m := &endOfWork{work: w, ending: e, changes: own, turn: make(chan []*endOfWork, 1)}
	if s.ends.first(m) {
		defer s.ends.next()
		if done, err := s.endKnown(ctx, m); done || err != nil {
			return err
		}
		return w.endAlone(ctx, e, changes)
	}
	select {
	case group, lead := <-m.turn:
		if lead && len(group) > 1 {
			s.commitGroup(ctx, group)
		} else if lead {
			defer s.ends.next()
		}
		if m.done {
			return nil
		}
		return w.endAlone(ctx, e, changes)
	case <-ctx.Done():
		s.ends.withdraw(m)
		return fmt.Errorf("wait for others to be committed: %w", context.Cause(ctx))
	}
}

// endKnown ends one work by fewer statements than endAlone, if everything is known of its machine
// and nobody has that locked, and says whether it did.
func (s *Session) endKnown(ctx context.Context, m *endOfWork) (done bool, err error) {
	if m.work.recollect() == nil {
		return false, nil
	}
	err = s.db.update(ctx, string(m.ending.event), func(ctx context.Context, t *transaction) error {
		ended, err := t.endTogether(ctx, s, []*endOfWork{m})
		if err == nil && len(ended) == 0 {
			return errNotEnded // nothing is to be committed
		}
		return err
	})
	if errors.Is(err, errNotEnded) {
		return false, nil
	}
	return err == nil, err
}

// errNotEnded says that an end must be committed alone, to learn what is wrong.
var errNotEnded = errors.New("somebody else has the machine")

// first says whether nobody commits at the moment, and makes the caller the one who does; else it
// waits.
func (q *ends) first(m *endOfWork) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.busy {
		q.busy = true
		return true
	}
	q.waiting = append(q.waiting, m)
	return false
}

// next hands over to those who came meanwhile: the first of them commits for all.
func (q *ends) next() {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waiting), maxEnds)
	if n == 0 {
		q.busy = false
		return
	}
	group := q.waiting[:n:n]
	q.waiting = q.waiting[n:]
	group[0].turn <- group
}

// withdraw takes out one who gave up waiting. Whose turn it has become hands it on; whoever is in a
// group already stays in it.
func (q *ends) withdraw(m *endOfWork) {
	q.mu.Lock()
	for i, w := range q.waiting {
		if w == m {
			q.waiting = append(q.waiting[:i:i], q.waiting[i+1:]...)
			q.mu.Unlock()
			return
		}
	}
	q.mu.Unlock()
	select {
	case group, lead := <-m.turn:
		if lead {
			release(group[1:])
			q.next()
		}
	default:
	}
}

// release lets the members of a group that is over go on.
func release(group []*endOfWork) {
	for _, m := range group {
		close(m.turn)
	}
}

// commitGroup commits what it can of a group, whose first member is the caller, and lets the others
// go on.
func (s *Session) commitGroup(ctx context.Context, group []*endOfWork) {
	defer s.ends.next()
	defer release(group[1:])
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endsTimeout)
	defer cancel()
	var ended []*endOfWork
	err := s.db.update(ctx, "end works", func(ctx context.Context, t *transaction) (err error) {
		ended, err = t.endTogether(ctx, s, group)
		return err
	})
	if err != nil {
		return // each finds out for itself
	}
	for _, m := range ended {
		m.done = true
	}
}

// endTogether ends those works of the group whose machines nobody has locked and whose lanes are
// still ours, and returns them.
func (t *transaction) endTogether(ctx context.Context, s *Session, group []*endOfWork) ([]*endOfWork, error) {
	if err := t.LockSession(ctx, s.id, false); err != nil {
		return nil, err
	}
	ids := make([]fleet.MachineID, len(group))
	for i, m := range group {
		ids[i] = m.work.Subject.Machine
	}
	ids, err := t.LockMachines(ctx, ids, true)
	if err != nil {
		return nil, fmt.Errorf("lock machines: %w", err)
	}
	if len(ids) == 0 {
		return nil, nil
	}
	if _, alive, err := t.alive(ctx, s.id); err != nil || !alive {
		return nil, err
	}
	ours, others, err := t.freeKnown(ctx, ids, group)
	if err != nil {
		return nil, err
	}
	read, err := t.freeRead(ctx, s, others)
	if err != nil {
		return nil, err
	}
	if ours = append(ours, read...); len(ours) == 0 {
		return nil, nil
	}
	for _, m := range ours {
		if err := m.work.apply(ctx, t, m.changes); err != nil {
			return nil, err
		}
	}
	if err := t.endAll(ctx, ours); err != nil {
		return nil, err
	}
	return ours, t.settleAll(ctx, ours)
}

// freeKnown frees the lanes of those of whose machines everything is known: the write itself makes
// sure that the epoch is still theirs, and that nobody has written about the machine since (rule
// 3). It returns them, and those others whose machines must be read first. Each machine counts
// once.
func (t *transaction) freeKnown(ctx context.Context, locked []fleet.MachineID, group []*endOfWork) (freed, others []*endOfWork, err error) {
	left := make(map[fleet.MachineID]bool, len(locked))
	for _, id := range locked {
		left[id] = true
	}
	var lanes statement.Rows
	var known []*endOfWork
	for _, m := range group {
		id := m.work.Subject.Machine
		if !left[id] {
			continue
		}
		delete(left, id)
		if m.machine = m.work.recollect(); m.machine == nil {
			others = append(others, m)
			continue
		}
		known, lanes = append(known, m), append(lanes, m.lane())
	}
	if len(known) == 0 {
		return nil, others, nil
	}
	subjects, err := t.q.FreeLanes(ctx, lanes)
	if err != nil {
		return nil, nil, fmt.Errorf("free the lanes: %w", err)
	}
	for _, m := range known {
		if subjects[subjectKey(m.work.Subject)] {
			freed = append(freed, m)
		} else {
			others = append(others, m)
		}
	}
	return freed, others, nil
}

// freeRead reads the machines of the members, whose rows are locked, and frees the lanes that are
// still theirs.
func (t *transaction) freeRead(ctx context.Context, s *Session, group []*endOfWork) ([]*endOfWork, error) {
	if len(group) == 0 {
		return nil, nil
	}
	ids := make([]fleet.MachineID, len(group))
	for i, m := range group {
		ids[i] = m.work.Subject.Machine
	}
	if err := t.prefetch(ctx, ids); err != nil {
		return nil, err
	}
	ours := t.fenced(s, group)
	if len(ours) == 0 {
		return nil, nil
	}
	lanes := make(statement.Rows, len(ours))
	for i, m := range ours {
		lanes[i] = m.lane()
	}
	freed, err := t.q.FreeLanes(ctx, lanes)
	if err != nil {
		return nil, fmt.Errorf("free the lanes: %w", err)
	}
	if len(freed) != len(ours) {
		return nil, fleet.Errorf(fleet.KindConflict, "%d of %d lanes were freed", len(freed), len(ours))
	}
	return ours, nil
}

// fenced returns the members whose machines have been read, with their rows locked, and whose lanes
// are still theirs (rules 1 and 3), each machine once.
func (t *transaction) fenced(s *Session, group []*endOfWork) (ours []*endOfWork) {
	for _, m := range group {
		id := m.work.Subject.Machine
		j, locked := t.loaded[id]
		if !locked || m.work.Process.Lane() != fleet.LaneHost {
			continue
		}
		if r := j.row; r.LaneSession == string(s.id) && r.LaneEpoch == int64(m.work.Epoch) {
			m.machine = j
			ours = append(ours, m)
			delete(t.loaded, id)
		}
	}
	t.loaded = nil
	return ours
}

// settleAll is rewrite for machines of which it is known what their ends have left; those with
// changes are read anew.
func (t *transaction) settleAll(ctx context.Context, list []*endOfWork) error {
	var changed []fleet.MachineID
	for _, m := range list {
		if len(m.changes) > 0 {
			changed = append(changed, m.work.Subject.Machine)
			continue
		}
		if err := t.settle(ctx, m.machine); err != nil {
			return err
		}
	}
	if len(changed) == 0 {
		return nil
	}
	if err := t.prefetch(ctx, changed); err != nil {
		return err
	}
	for _, id := range changed {
		if err := t.rewrite(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// endAll writes the ends of works whose lanes have been freed: backoffs and history.
func (t *transaction) endAll(ctx context.Context, list []*endOfWork) error {
	retryAt, err := t.backOffAll(ctx, list)
	if err != nil {
		return err
	}
	var resets statement.Rows
	for _, m := range list {
		if _, backed := m.machine.record.Backoffs[m.work.Process]; backed && m.ending.reset && m.ending.failure == nil {
			resets = append(resets, []any{subjectKey(m.work.Subject), string(m.work.Process)})
			delete(m.machine.record.Backoffs, m.work.Process)
		}
		m.machine.row.LaneSession, m.machine.record.Holds = "", nil
	}
	if len(resets) > 0 {
		if err := t.q.DeleteBackoffs(ctx, resets); err != nil {
			return fmt.Errorf("reset the backoffs: %w", err)
		}
	}
	for i, m := range list {
		w := m.work
		err := t.record(ctx, history{
			subject: w.Subject, actor: w.session.actor(), process: w.Process, lane: w.Process.Lane(), epoch: w.Epoch, edge: edgeEnd,
			event: m.ending.event, detail: m.ending.detail, retryAt: retryAt[i], session: w.Session,
		})
		if err != nil {
			return err
		}
		t.outcomes = append(t.outcomes, observed{w.Process, string(m.ending.event), t.Now().Sub(instant(w.since))})
	}
	return nil
}

// backOffAll writes the next backoffs of those that failed and returns, for each of the list, when
// its own is over.
func (t *transaction) backOffAll(ctx context.Context, list []*endOfWork) ([]time.Time, error) {
	retryAt := make([]time.Time, len(list))
	var puts statement.Rows
	for i, m := range list {
		if m.ending.failure == nil {
			continue
		}
		backoffs, process := m.machine.record.Backoffs, m.work.Process
		next := t.nextBackoff(backoffs[process], *m.ending.failure, m.ending.jitter)
		backoffs[process], retryAt[i] = next, next.NotBefore
		puts = append(puts, []any{
			subjectKey(m.work.Subject), string(process), micros(next.NotBefore), next.Interval.Microseconds(), next.Cause, int64(next.Failures),
		})
	}
	if len(puts) == 0 {
		return retryAt, nil
	}
	if err := t.q.PutBackoffs(ctx, puts); err != nil {
		return nil, fmt.Errorf("write the backoffs: %w", err)
	}
	return retryAt, nil
}
