package bmdb

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// providerRecord is a provider as one transaction knows it: what lifecycle judges, and what its
// rows say.
type providerRecord struct {
	facts fleet.ProviderRecord
	row   statement.Provider
	lanes map[fleet.Process]*providerLane
}

// providerLane is one of the lanes of a provider, which has one for each of its processes.
type providerLane struct {
	lane
	provider fleet.ProviderName
	of       fleet.Process
	// due is the instant of its entry in the agenda, in microseconds; 0: it has none.
	due int64
	// changed: the buffer is to write the row.
	changed bool
}

// loadProvider reads everything that lifecycle judges the provider by. KindNotFound.
func (t *transaction) loadProvider(ctx context.Context, name fleet.ProviderName) (*providerRecord, error) {
	if err := t.writeBefore(ctx, providerKey(name)); err != nil {
		return nil, err
	}
	row, err := t.q.GetProvider(ctx, string(name))
	if absent(err) {
		return nil, fleet.Errorf(fleet.KindNotFound, "there is no provider %s", name)
	}
	if err != nil {
		return nil, err
	}
	changing, err := t.q.AnyChanging(ctx, statement.AnyChangingParams{
		Provider: string(name), OffSince: micros(t.Now().Add(-lifecycle.OffSettles)),
	})
	if err != nil {
		return nil, err
	}
	p := &providerRecord{row: row, lanes: make(map[fleet.Process]*providerLane), facts: fleet.ProviderRecord{
		Name: name, Kind: row.Kind, LastPassAt: instant(row.LastPassAt), LastUpdateAt: instant(row.LastUpdateAt),
		Changing: changing > 0, Backoffs: make(map[fleet.Process]fleet.BackoffState),
		Paused: when(row.PausedAt != 0, fleet.Pause{At: instant(row.PausedAt), Actor: row.PausedBy, Reason: row.PausedWhy}),
	}}
	lanes, err := t.q.ListProviderLanes(ctx, string(name))
	if err != nil {
		return nil, err
	}
	for _, r := range lanes {
		l := &providerLane{provider: name, of: fleet.Process(r.Process), due: r.DueAt, lane: lane{
			epoch: fleet.Epoch(r.Epoch), session: fleet.SessionID(r.Session), since: r.Since, why: r.Why,
			was: fence{epoch: r.Epoch, session: r.Session, revision: r.Revision},
			holder: holder{
				component: r.SessionComponent, host: r.SessionHost, deadlineAt: r.SessionDeadlineAt, endedAt: r.SessionEndedAt,
			},
		}}
		if l.session != "" {
			l.process = l.of
		}
		p.lanes[l.of] = l
	}
	backoffs, err := t.q.GetBackoffs(ctx, providerKey(name))
	if err != nil {
		return nil, err
	}
	for _, b := range backoffs {
		p.facts.Backoffs[fleet.Process(b.Process)] = backoffStateOf(b)
	}
	return p, nil
}

// freeDeadLanes ends, as expired, the work of sessions that have ended. The provider's row is
// locked.
func (t *transaction) freeDeadLanes(p *providerRecord) {
	for _, process := range slices.Sorted(maps.Keys(p.lanes)) {
		if l := p.lanes[process]; l.dead() {
			t.expire(fleet.Subject{Provider: p.facts.Name}, &l.lane)
			t.buffer.lane(l)
		}
	}
}

// rewriteProvider rewrites a provider; its row is locked.
func (t *transaction) rewriteProvider(ctx context.Context, name fleet.ProviderName) error {
	p, err := t.loadProvider(ctx, name)
	if err != nil {
		return err
	}
	return t.deriveProvider(ctx, p)
}

// deriveProvider rewrites a provider of which the transaction has not written any facts since it
// read it.
func (t *transaction) deriveProvider(ctx context.Context, p *providerRecord) error {
	t.freeDeadLanes(p)
	plan, err := t.judgeProvider(ctx, p)
	if err != nil {
		return err
	}
	for _, process := range slices.Sorted(maps.Keys(p.lanes)) {
		l, is := p.lanes[process], dueMicros(plan[process])
		if t.move(process, providerKey(p.facts.Name), p.facts.Name, l.due, is) {
			t.buffer.lane(l)
			l.due = is
		}
	}
	return nil
}

// judgeProvider is what lifecycle says now, by process.
func (t *transaction) judgeProvider(ctx context.Context, p *providerRecord) (map[fleet.Process]lifecycle.Decision, error) {
	env, err := t.environment(ctx)
	if err != nil {
		return nil, err
	}
	p.facts.Holds = make(map[fleet.Lane]fleet.Hold)
	for process, l := range p.lanes {
		if h, held := l.hold(); held {
			p.facts.Holds[process.Lane()] = h
		}
	}
	plan := make(map[fleet.Process]lifecycle.Decision)
	for _, d := range lifecycle.DecideProvider(p.facts, env, t.Now()) {
		plan[d.Process] = d
	}
	return plan, nil
}

// PauseProvider keeps new machines from being created at the provider, also by the pass under way:
// that one makes no further call (IntentCalled). It keeps its lane, so that what comes of the
// calls that it has made is known. What is there is looked after as before. KindConflict where it
// is paused for another reason: who resumes it for one would not know of the other.
func (db *DB) PauseProvider(ctx context.Context, actor string, name fleet.ProviderName, reason string) error {
	return db.onProvider(ctx, "pause provider", name, func(ctx context.Context, t *transaction, p *providerRecord) error {
		switch was := p.facts.Paused; {
		case was == nil:
		case was.Actor == actor && was.Reason == reason:
			return nil // it is asked again, because the reply was lost perhaps
		default:
			return fleet.Errorf(fleet.KindConflict, "provider %s is paused already by %s: %s; `ironherd provider resume %s --reason WHY` ends that first",
				name, fleet.ShownActor(was.Actor), was.Reason, name)
		}
		t.addEvent(fleet.Subject{Provider: name}, actor, fleet.ProcessProvision, fleet.EventPaused, reason)
		return t.q.PauseProvider(ctx, statement.PauseProviderParams{At: micros(t.Now()), Actor: actor, Reason: reason, Name: string(name)})
	})
}

// ResumeProvider ends the pause. KindConflict when there is none.
func (db *DB) ResumeProvider(ctx context.Context, actor string, name fleet.ProviderName, reason string) error {
	return db.onProvider(ctx, "resume provider", name, func(ctx context.Context, t *transaction, p *providerRecord) error {
		if p.facts.Paused == nil {
			return fleet.Errorf(fleet.KindConflict, "provider %s is not paused", name)
		}
		t.addEvent(fleet.Subject{Provider: name}, actor, fleet.ProcessProvision, fleet.EventResumed, reason)
		return t.q.PauseProvider(ctx, statement.PauseProviderParams{Name: string(name)})
	})
}

// RetryProvider ends the backoffs of the provider and the penalties of its capacity that have an
// end, so that what only they hold back is tried now. It returns the processes that had a backoff,
// how many penalties were ended, and how many without end were kept: those end by RetryCapacity.
func (db *DB) RetryProvider(ctx context.Context, actor string, name fleet.ProviderName, reason string,
) (retried []fleet.Process, ended, kept int, err error) {
	err = db.onProvider(ctx, "retry provider", name, func(ctx context.Context, t *transaction, p *providerRecord) error {
		if reason != "" {
			t.under = "; " + reason
		}
		retried = slices.Sorted(maps.Keys(p.facts.Backoffs))
		for _, process := range retried { // I12
			t.buffer.resetBackoff(keyOf(fleet.Subject{Provider: name}), process)
			t.backoffEnded(fleet.Subject{Provider: name}, actor, process, p.facts.Backoffs[process])
		}
		penalties, err := t.penalties(ctx, name)
		if err != nil {
			return err
		}
		kept = 0 // of a transaction that is run again
		for _, penalty := range penalties {
			if penalty.ForEver() {
				kept++
			}
		}
		if ended = len(penalties) - kept; ended == 0 {
			return nil
		}
		t.addEvent(fleet.Subject{Provider: name}, actor, fleet.ProcessProvision, fleet.EventRetryRequested,
			fmt.Sprintf("%d penalties of capacity were ended", ended))
		return t.q.DeleteEndingPenalties(ctx, statement.DeleteEndingPenaltiesParams{Provider: string(name), Before: micros(forEver)})
	})
	return retried, ended, kept, err
}

// RetryCapacity ends the penalties of these pieces of capacity, also those without end, and nothing
// else: the next pass may use them. KindConflict, and nothing is done, where one sits out none.
func (db *DB) RetryCapacity(ctx context.Context, actor string, name fleet.ProviderName, capacities []fleet.CapacityID, reason string) error {
	capacities = slices.Compact(slices.Sorted(slices.Values(capacities)))
	return db.onProvider(ctx, "retry capacity", name, func(ctx context.Context, t *transaction, _ *providerRecord) error {
		t.under = "; " + reason
		penalties, err := t.penalties(ctx, name)
		if err != nil {
			return err
		}
		var free []string
		for _, c := range capacities {
			if _, is := penalties[c]; !is {
				free = append(free, string(c))
			}
		}
		if len(free) > 0 {
			const named = 10
			more := ""
			if n := len(free) - named; n > 0 {
				free, more = free[:named], fmt.Sprintf(" and %d more", n)
			}
			return fleet.Errorf(fleet.KindConflict, "no penalty of %s is there to end for capacity %s%s, and nothing was done: `ironherd provider show %s` names what is kept out",
				name, strings.Join(free, ", "), more, name)
		}
		for _, c := range capacities {
			t.addEvent(fleet.Subject{Provider: name}, actor, fleet.ProcessProvision, fleet.EventRetryRequested,
				fmt.Sprintf("capacity %s may be used again (%s)", c, penalties[c].Cause))
			if err := t.q.DeletePenalty(ctx, statement.DeletePenaltyParams{Provider: string(name), Capacity: string(c)}); err != nil {
				return err
			}
		}
		return nil
	})
}

// onProvider locks a provider, reads it by a later statement, writes, and rewrites its agenda, also
// where nothing was written. KindNotFound.
func (db *DB) onProvider(ctx context.Context, kind string, name fleet.ProviderName,
	fn func(ctx context.Context, t *transaction, p *providerRecord) error,
) error {
	return db.update(ctx, kind, func(ctx context.Context, t *transaction) error {
		p, err := t.lockProvider(ctx, name)
		if err != nil {
			return err
		}
		if err := fn(ctx, t, p); err != nil {
			return err
		}
		return t.rewriteProvider(ctx, name)
	})
}

// lockProvider locks the row of a provider, and returns what it says then.
func (t *transaction) lockProvider(ctx context.Context, name fleet.ProviderName) (*providerRecord, error) {
	l := locks{providers: []fleet.ProviderName{name}}
	if err := l.take(ctx, t); err != nil {
		return nil, err
	}
	return t.loadProvider(ctx, name)
}

// ProviderView is what the BMDB knows of one provider, in one snapshot.
type ProviderView struct {
	// Now is the database time of the snapshot.
	Now time.Time
	// Machines that have a provider ID, in the order of those.
	Machines []ProviderMachine
	// Intents that are open, in the order of their machines.
	Intents []fleet.Intent
	// Penalties that are not over.
	Penalties     map[fleet.CapacityID]Penalty
	Discrepancies []Discrepancy
	// Adoptions are the machines that operators want managed, with who asked.
	Adoptions map[fleet.ProviderID]string
}

// ProviderMachine is one machine of a ProviderView.
type ProviderMachine struct {
	ID         fleet.MachineID
	ProviderID fleet.ProviderID
	CreatedAt  time.Time
	Provided   *fleet.Provided
	// Releasing: the provider may have been asked to take it back, and whoever asked has not said yet
	// what became of that. It may be in the provider's list or not.
	Releasing bool
}

// Penalty keeps a piece of capacity from being used.
type Penalty struct {
	Until time.Time
	Cause string
	// Address is the one that the host of a list had when it was given back; invalid: it is of no such
	// host.
	Address netip.Addr
}

// ForEver reports whether only a person ends it (DB.RetryCapacity).
func (p Penalty) ForEver() bool { return !p.Until.Before(forEver) }

// Discrepancy is where provider and BMDB disagree.
type Discrepancy struct {
	Kind       fleet.DiscrepancyKind
	ProviderID fleet.ProviderID
	// Machine is empty where the BMDB knows none.
	Machine fleet.MachineID
	// Since is set by the BMDB.
	Since    time.Time
	Evidence string
	Remedy   string
}

// ViewProvider reads all that a pass needs, in one snapshot. KindNotFound when the provider was
// never registered.
func (db *DB) ViewProvider(ctx context.Context, name fleet.ProviderName) (ProviderView, error) {
	return read(ctx, db.view, "view provider", func(ctx context.Context, t *transaction) (v ProviderView, err error) {
		if _, err := t.q.GetProvider(ctx, string(name)); absent(err) {
			return v, fleet.Errorf(fleet.KindNotFound, "there is no provider %s", name)
		} else if err != nil {
			return v, err
		}
		v.Now = t.Now()
		machines, err := t.q.ListProviderMachines(ctx, string(name))
		if err != nil {
			return v, err
		}
		v.Machines = converted(machines, providerMachineOf)
		if v.Penalties, err = t.penalties(ctx, name); err != nil {
			return v, err
		}
		intents, err := t.q.ListIntents(ctx, string(name))
		if err != nil {
			return v, err
		}
		v.Intents = converted(intents, intentOf)
		discrepancies, err := t.q.ListProviderDiscrepancies(ctx, string(name))
		if err != nil {
			return v, err
		}
		v.Discrepancies = converted(discrepancies, discrepancyOf)
		adoptions, err := t.q.ListAdoptions(ctx, string(name))
		v.Adoptions = make(map[fleet.ProviderID]string, len(adoptions))
		for _, a := range adoptions {
			v.Adoptions[fleet.ProviderID(a.ProviderID)] = a.Actor
		}
		return v, err
	})
}

// ClosedToken is what became of a token whose intent is not open any more.
type ClosedToken struct {
	Machine fleet.MachineID
	// Released: the machine was given back. Forgotten: it was not, and nobody wants to know of it.
	Released, Forgotten bool
}

// ClosedTokens returns those of the tokens that are of intents of the provider which are not open
// any more.
func (db *DB) ClosedTokens(ctx context.Context, name fleet.ProviderName, tokens []fleet.Token) (map[fleet.Token]ClosedToken, error) {
	return read(ctx, db.view, "closed tokens", func(ctx context.Context, t *transaction) (closed map[fleet.Token]ClosedToken, err error) {
		closed = make(map[fleet.Token]ClosedToken)
		for _, token := range tokens {
			k, err := t.q.GetToken(ctx, string(token))
			if err != nil && !absent(err) {
				return closed, err
			}
			if err == nil && k.Provider == string(name) && k.ClosedAt > 0 {
				closed[token] = ClosedToken{Machine: fleet.MachineID(k.Machine), Released: k.Outcome == outcomeReleased, Forgotten: k.Outcome == outcomeForgotten}
			}
		}
		return closed, nil
	})
}

func providerMachineOf(m statement.ListProviderMachinesRow) ProviderMachine {
	return ProviderMachine{
		ID: fleet.MachineID(m.ID), ProviderID: fleet.ProviderID(m.ProviderID), CreatedAt: instant(m.CreatedAt),
		Provided: providedOf(m.FactProvided), Releasing: m.Releasing != 0,
	}
}

func intentOf(i statement.Intent) fleet.Intent {
	return fleet.Intent{
		Machine: fleet.MachineID(i.Machine), Provider: fleet.ProviderName(i.Provider), Capacity: fleet.CapacityID(i.Capacity),
		Token: fleet.Token(i.Token), OpenedAt: instant(i.OpenedAt), PlannedAt: instant(i.PlannedAt),
		CalledAt: instantPointer(i.CalledAt), Calls: int(i.Calls), Rejected: int(i.Rejected),
	}
}

func discrepancyOf(d statement.Discrepancy) Discrepancy {
	return Discrepancy{
		Kind: fleet.DiscrepancyKind(d.Kind), ProviderID: fleet.ProviderID(d.ProviderID), Machine: fleet.MachineID(d.Machine), Since: instant(d.Since),
		Evidence: d.Evidence, Remedy: d.Remedy,
	}
}
