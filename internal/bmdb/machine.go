package bmdb

import (
	"cmp"
	"context"
	"slices"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// machineRecord is a machine as one transaction knows it: what lifecycle judges, and what its row
// says.
type machineRecord struct {
	facts fleet.Record
	lane  lane
	// due are the instants of its entries in the agenda, in microseconds; 0: it has none.
	due   map[fleet.Process]int64
	state storedState
	// underRecovery: it counts against the concurrency limit of recovery, held for it or not.
	underRecovery bool
	// changed: the buffer is to write the row.
	changed bool
}

// storedState is the state that people filter by, since when, and what it was judged under.
type storedState struct {
	state  fleet.State
	reason string
	since  int64
	basis  basis
}

// basis is what a state was judged under: the numbers of a policy and of the rules of a release.
type basis struct{ policy, rules int64 }

// basisNow is that of this release under the policy.
func basisNow(policy fleet.Policy) basis { return basis{policy.Number, lifecycle.Rules} }

// numbersOfRules is above every number of rules.
const numbersOfRules = 1000

// stored is the one number that the database has of it: it orders policies first, and the rules of
// releases second. So what an older release judges is judged again by this one, also while both
// run. A release that does not number its rules writes the number of the policy alone, which is
// lower.
func (b basis) stored() int64 { return b.policy*numbersOfRules + b.rules }

func basisOf(stored int64) basis { return basis{stored / numbersOfRules, stored % numbersOfRules} }

// basis is that of a machine that is judged now. Levers change with the number of the policy. So
// where that is news to this process, which may have read the machine before, the machine counts as
// judged under the policy from before, and is judged again.
func (t *transaction) basis(m *machineRecord) basis {
	b := basisNow(t.env.Policy)
	b.policy = min(b.policy, max(t.known, m.state.basis.policy))
	return b
}

func machineOf(row statement.MachineRecord) *machineRecord {
	m := &machineRecord{
		lane: laneOf(row),
		due: map[fleet.Process]int64{
			fleet.ProcessAgentStart: row.DueAgentStart, fleet.ProcessInstall: row.DueInstall, fleet.ProcessOperation: row.DueOperation,
			fleet.ProcessRecovery: row.DueRecovery, fleet.ProcessProbe: row.DueProbe,
		},
		underRecovery: row.Limited != "" && row.Process != row.Limited,
		state:         storedState{state: fleet.State(row.State), reason: row.StateReason, since: row.StateSince, basis: basisOf(row.StatePolicy)},
	}
	m.facts = recordOf(row, &m.lane)
	m.facts.Backoffs = make(map[fleet.Process]fleet.BackoffState)
	return m
}

// loadAll reads all that lifecycle judges these machines by, and returns those that there are.
// Where something is to be written upon it, their rows must have been locked by an earlier
// statement.
func (t *transaction) loadAll(ctx context.Context, ids []fleet.MachineID) (map[fleet.MachineID]*machineRecord, error) {
	keys := converted(ids, machineKey)
	if err := t.writeBefore(ctx, keys...); err != nil {
		return nil, err
	}
	rows, err := t.many.GetMachines(ctx, keys)
	if err != nil {
		return nil, err
	}
	found := make(map[fleet.MachineID]*machineRecord, len(rows))
	for _, row := range rows {
		found[fleet.MachineID(row.ID)] = machineOf(row)
	}
	backoffs, err := t.many.GetAllBackoffs(ctx, keys)
	if err != nil {
		return nil, err
	}
	for _, b := range backoffs {
		if m, ok := found[fleet.MachineID(b.Subject)]; ok {
			m.facts.Backoffs[fleet.Process(b.Process)] = backoffStateOf(b)
		}
	}
	return found, nil
}

// writeBefore goes before these subjects are read: if the buffer holds anything of them, it is
// written, so that they are read as they are by now.
func (t *transaction) writeBefore(ctx context.Context, subjects ...string) error {
	for _, s := range subjects {
		if t.buffer.subjects[s] {
			return t.flush(ctx)
		}
	}
	return nil
}

// load reads one machine, as loadAll does many. KindNotFound.
func (t *transaction) load(ctx context.Context, id fleet.MachineID) (*machineRecord, error) {
	found, err := t.loadAll(ctx, []fleet.MachineID{id})
	if err != nil {
		return nil, err
	}
	m, ok := found[id]
	if !ok {
		return nil, fleet.Errorf(fleet.KindNotFound, "there is no machine %s", id)
	}
	return m, nil
}

// row reads what the database says of one machine. KindNotFound.
func (t *transaction) row(ctx context.Context, id fleet.MachineID) (statement.MachineRecord, error) {
	rows, err := t.q.GetMachine(ctx, string(id))
	if err != nil {
		return statement.MachineRecord{}, err
	}
	if len(rows) == 0 {
		return statement.MachineRecord{}, fleet.Errorf(fleet.KindNotFound, "there is no machine %s", id)
	}
	return rows[0], nil
}

func backoffStateOf(b statement.Backoff) fleet.BackoffState {
	return fleet.BackoffState{
		NotBefore: instant(b.NotBefore), Interval: lasting(b.Lasts), Cause: b.Cause, Failures: int(b.Failures),
		Since: instant(b.Since), UnansweredSince: instant(b.UnansweredSince), UnansweredAt: instant(b.UnansweredAt),
		Answered: b.Answered > 0, Refused: b.Answered > 1, OtherKey: b.Answered > 2,
	}
}

// judge is what lifecycle says now.
func (t *transaction) judge(ctx context.Context, m *machineRecord) (lifecycle.Plan, error) {
	env, err := t.environment(ctx)
	if err != nil {
		return lifecycle.Plan{}, err
	}
	// a newer policy was committed after this transaction had read its own
	if m.state.basis.policy > env.Policy.Number {
		if env, err = t.reread(ctx); err != nil {
			return lifecycle.Plan{}, err
		}
	}
	m.facts.Holds = m.lane.byLane(fleet.LaneHost)
	return lifecycle.Decide(m.facts, env, t.Now()), nil
}

// rewriteSubjects makes the agenda and the states of subjects what lifecycle says of their facts,
// each once. Every write of facts or backoffs calls it, in the same transaction, with their rows
// locked. Of one whose row has gone, what was derived has gone with it.
func (t *transaction) rewriteSubjects(ctx context.Context, list []fleet.Subject) error {
	slices.SortFunc(list, func(a, b fleet.Subject) int { return cmp.Compare(keyOf(a), keyOf(b)) })
	var ids []fleet.MachineID
	for _, s := range slices.Compact(list) {
		if s.Machine != "" {
			ids = append(ids, s.Machine)
		} else if err := t.rewriteProvider(ctx, s.Provider); err != nil && fleet.KindOf(err) != fleet.KindNotFound {
			return err // one that is not found was forgotten
		}
	}
	if len(ids) == 0 {
		return nil
	}
	machines, err := t.loadAll(ctx, ids)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if m, there := machines[id]; there { // else its row has gone, and all that was derived with it
			if err := t.derive(ctx, m); err != nil {
				return err
			}
		}
	}
	return nil
}

// freeDeadLane ends, as expired, the work of a session that has ended. The machine's row is locked.
func (t *transaction) freeDeadLane(m *machineRecord) {
	if m.lane.dead() {
		t.expire(fleet.Subject{Machine: m.facts.ID}, &m.lane)
		t.buffer.machine(m)
	}
}

// derive rewrites a machine of which the transaction has not written any facts since it read it.
func (t *transaction) derive(ctx context.Context, m *machineRecord) error {
	t.freeDeadLane(m)
	plan, err := t.judge(ctx, m)
	if err != nil {
		return err
	}
	t.putState(m, plan)
	t.countRecovery(m)
	for _, process := range fleet.MachineProcesses() {
		is := dueMicros(plan.For(process))
		if t.move(process, machineKey(m.facts.ID), m.facts.Provider, m.due[process], is) {
			t.buffer.machine(m)
			m.due[process] = is
		}
	}
	return nil
}

// dueMicros is the instant that the agenda has for a decision, never later than lifecycle says; 0:
// none.
func dueMicros(d lifecycle.Decision) int64 {
	if !d.Verdict.Scheduled() {
		return 0
	}
	return max(d.DueAt.UnixMicro(), 1)
}

// putState writes the state if it differs from what is there. A reason alone is not worth a row
// while somebody is at work: lists say who is, and the end of the work writes it.
func (t *transaction) putState(m *machineRecord, plan lifecycle.Plan) {
	was := m.state
	now := t.basis(m)
	if was.state == plan.State && was.basis == now {
		if _, atWork := m.facts.Holds[fleet.LaneHost]; atWork || was.reason == plan.Reason {
			return
		}
	}
	m.state = storedState{state: plan.State, reason: plan.Reason, since: was.since, basis: now}
	if was.state != plan.State {
		m.state.since = micros(t.Now())
	}
	t.buffer.state(string(was.state), statement.PutStateParams{
		Machine: string(m.facts.ID), Provider: string(m.facts.Provider), State: string(m.state.state), Reason: m.state.reason,
		Since: m.state.since, Policy: m.state.basis.stored(),
	})
}

// removeMachine removes a machine, with all that was derived of it, and ends what is being done to
// it. Its epoch is kept with its token: if the machine comes back, its lane goes on from there
// (I3). The rows of the machine and of its provider are locked.
func (t *transaction) removeMachine(ctx context.Context, m *machineRecord) error {
	id := m.facts.ID
	t.vacate(fleet.Subject{Machine: id}, &m.lane, actorBMDB, "the machine is gone")
	for _, process := range fleet.MachineProcesses() {
		t.move(process, machineKey(id), m.facts.Provider, m.due[process], 0)
	}
	t.buffer.resetBackoff(machineKey(id), fleet.MachineProcesses()...)
	t.buffer.count(string(m.facts.Provider), string(m.state.state), -1)
	err := t.q.SetTokenEpoch(ctx, statement.SetTokenEpochParams{Machine: string(id), Epoch: int64(m.lane.epoch)})
	if err != nil {
		return err
	}
	if err := t.q.DeleteState(ctx, string(id)); err != nil {
		return err
	}
	if err := t.q.DeleteHostKeys(ctx, string(id)); err != nil {
		return err
	}
	if err := t.q.DeleteMachine(ctx, string(id)); err != nil {
		return err
	}
	return t.addMachines(ctx, m.facts.Provider, -1)
}

// insertMachine makes the row of a machine, which may have been there before.
func (t *transaction) insertMachine(ctx context.Context, id fleet.MachineID, provider fleet.ProviderName) error {
	return t.q.InsertMachine(ctx, statement.InsertMachineParams{ID: string(id), Provider: string(provider), CreatedAt: micros(t.Now())})
}
