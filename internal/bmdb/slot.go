package bmdb

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// Storm slots keep a provider that fails as a whole from being stormed: where the policy limits how
// much of a process may go on at one provider at once, each such work has one of as many slots
// (rule 2).
//
// A slot is a row that names a lane and an epoch. It is taken exactly while the lane has that epoch
// and somebody holds it. So nobody ever frees a slot: whatever frees the lane, or makes its epoch
// grow, frees the slot in the same moment, and none can leak. The dead keep theirs until their end
// is a fact and their lanes are freed, which a claim that finds no slot sees to.
//
// Who takes a slot has locked all slots of the provider, in the order of their numbers, after
// everything else that its claim locks, and has read which of them are taken, and the policy, by
// later statements. So any number of processes that claim at once take turns, shortly, and the sum
// is right whatever they saw before. What finds no slot stays due in the agenda; the end of a work
// that may have had a slot wakes those who claim.

// limited says whether a policy may limit how much of the process goes on at one provider at once.
// Claims of others know no slots. The agenda has an index for it, agenda_recovery.
func limited(process fleet.Process) bool { return process == fleet.ProcessRecovery }

// slot is one that a work is about to take.
type slot struct {
	provider fleet.ProviderName
	number   int64
}

// slotting is what one transaction of a claim does about slots.
type slotting struct {
	// slots of the works that are about to start, in their order; none where there is no limit.
	slots []slot
	// full are the providers that had none left; missing those whose slots have yet to be made, up to
	// that number.
	full    map[fleet.ProviderName]time.Time
	missing map[fleet.ProviderName]int
}

func (t *transaction) takenSlots(ctx context.Context, process fleet.Process, provider fleet.ProviderName) ([]statement.ListTakenSlotsRow, error) {
	taken, err := t.q.ListTakenSlots(ctx, statement.ListTakenSlotsParams{Process: string(process), Provider: string(provider)})
	if err != nil {
		return nil, fmt.Errorf("read the slots of %s: %w", provider, err)
	}
	return taken, nil
}

// supply is what slots of one provider a transaction of a claim may take.
type supply struct {
	numbers []int64
	// freedAt is when the first of the taken ones may be freed without its holder.
	freedAt time.Time
	// short: there are fewer than the limit allows, or fewer were locked.
	short bool
	// dying: the dead have some, which the claim has yet to free.
	dying bool
}

// reserve keeps of the works that are about to start those for whom there is a slot; the machines
// of the others stay due. Everything else that the claim locks is locked by now, so whoever has
// slots locked waits for nobody.
func (r *claimRound) reserve(ctx context.Context, candidates []candidate) error {
	process := r.request.Process
	if len(r.starts) == 0 || !limited(process) {
		return nil
	}
	providers := make(map[string]fleet.ProviderName, len(candidates))
	for _, a := range candidates {
		providers[a.subject] = a.provider
	}
	supplies := make(map[fleet.ProviderName]*supply)
	for _, s := range r.starts {
		supplies[providers[subjectKey(s.subject)]] = nil
	}
	limit, err := r.supply(ctx, supplies)
	if err != nil || limit == 0 {
		return err
	}
	r.full, r.missing = make(map[fleet.ProviderName]time.Time), make(map[fleet.ProviderName]int)
	starts := r.starts
	r.starts = nil
	for _, s := range starts {
		provider := providers[subjectKey(s.subject)]
		have := supplies[provider]
		if len(have.numbers) > 0 {
			r.starts, r.slots = append(r.starts, s), append(r.slots, slot{provider, have.numbers[0]})
			have.numbers = have.numbers[1:]
			continue
		}
		i := slices.IndexFunc(candidates, func(a candidate) bool { return a.subject == subjectKey(s.subject) })
		r.again = append(r.again, candidates[i])
		switch {
		case have.short:
			r.missing[provider] = limit
		case !have.dying:
			r.full[provider] = have.freedAt
		}
	}
	return nil
}

// supply locks the slots of the providers, in the order of their names, and finds out which may be
// taken. It returns the limit; 0: there is none.
func (r *claimRound) supply(ctx context.Context, supplies map[fleet.ProviderName]*supply) (limit int, err error) {
	process := r.request.Process
	env, err := r.t.environment(ctx)
	if err != nil {
		return 0, err
	}
	expected := env.Policy.AtOnce(process)
	if expected == 0 {
		return 0, nil
	}
	names := slices.Sorted(maps.Keys(supplies))
	for _, provider := range names {
		numbers, err := r.t.LockSlots(ctx, process, provider, expected)
		if err != nil {
			return 0, err
		}
		supplies[provider] = &supply{numbers: numbers}
	}
	// What the limit is by now, and which slots are taken, is read by later statements than those that
	// took the locks.
	r.t.env = nil
	if env, err = r.t.environment(ctx); err != nil {
		return 0, err
	}
	limit = env.Policy.AtOnce(process)
	for _, provider := range names {
		taken, err := r.t.takenSlots(ctx, process, provider)
		if err != nil {
			return 0, err
		}
		supplies[provider].dying = len(r.dead(taken, provider, r.t.Now())) > 0
		supplies[provider].judge(taken, limit, r.t.Now())
	}
	return limit, nil
}

// judge keeps the numbers that may be taken. What is taken beyond a limit that was lowered counts,
// too.
func (s *supply) judge(taken []statement.ListTakenSlotsRow, limit int, now time.Time) {
	s.freedAt = freedAt(taken, now)
	if len(taken) >= limit {
		s.numbers = nil
		return
	}
	s.short = len(s.numbers) < limit
	s.numbers = slices.DeleteFunc(s.numbers, func(n int64) bool {
		return n > int64(limit) || slices.ContainsFunc(taken, func(t statement.ListTakenSlotsRow) bool { return t.Slot == n })
	})
	s.numbers = s.numbers[:min(len(s.numbers), limit-len(taken))]
}

// occupy puts the works that have started into their slots.
func (r *claimRound) occupy(ctx context.Context) error {
	if len(r.slots) == 0 {
		return nil
	}
	env, err := r.t.environment(ctx)
	if err != nil {
		return err
	}
	rows := make(statement.Rows, len(r.slots))
	for i, s := range r.slots {
		w := r.works[i]
		rows[i] = []any{
			string(w.Process), string(s.provider), s.number, subjectKey(w.Subject), string(w.Process.Lane()), int64(w.Epoch), env.Policy.Number,
		}
	}
	if err := r.t.q.PutSlots(ctx, rows); err != nil {
		return fmt.Errorf("take the slots: %w", err)
	}
	return nil
}

// slotted takes in what a transaction of the claim, which is committed, found out about slots, and
// makes those that are missing: by a transaction of its own, which locks nothing else, because
// these rows cannot be locked in order before they are there.
func (c *claiming) slotted(ctx context.Context, r *claimRound) error {
	for provider, until := range r.full {
		if !until.Before(r.deadline) {
			until = r.deadline // our own works have slots, too
		}
		c.fill(provider, until)
	}
	var rows statement.Rows
	for _, provider := range slices.Sorted(maps.Keys(r.missing)) {
		limit := r.missing[provider]
		if c.made[provider] >= limit {
			c.fill(provider, r.t.Now().Add(crowdedAgain))
			continue
		}
		if c.made == nil {
			c.made = make(map[fleet.ProviderName]int)
		}
		c.made[provider] = limit
		for n := range limit {
			rows = append(rows, []any{string(c.request.Process), string(provider), int64(n + 1)})
		}
	}
	if len(rows) == 0 {
		return nil
	}
	err := c.s.db.update(ctx, "make slots", func(ctx context.Context, t *transaction) error { return t.q.InsertSlots(ctx, rows) })
	if err != nil {
		return fmt.Errorf("make slots: %w", err)
	}
	return nil
}

// anyProvider is where something became due that is not told.
const anyProvider = fleet.ProviderName("")

// freesSlots makes those who wait for a slot look again: the transaction ends work that may have
// had one.
func (t *transaction) freesSlots() {
	for _, o := range t.outcomes {
		if limited(o.process) && (t.env == nil || t.env.Policy.AtOnce(o.process) > 0) {
			t.becomesDue(headKey{o.process, anyProvider}, t.Now())
		}
	}
}

// limitChanged is called when the policy that is being written limits processes otherwise than the
// one before. What runs without slots, because there was no limit, gets some: beyond the limit, if
// need be.
func (t *transaction) limitChanged(ctx context.Context, was, is fleet.Policy) error {
	for _, process := range fleet.MachineProcesses() {
		if was.AtOnce(process) == is.AtOnce(process) {
			continue
		}
		t.becomesDue(headKey{process, anyProvider}, t.Now())
		if was.AtOnce(process) > 0 {
			continue
		}
		running, err := t.q.ListWithoutSlot(ctx, string(process))
		if err != nil {
			return fmt.Errorf("list what runs of %s: %w", process, err)
		}
		if err := t.giveSlots(ctx, process, is.Number, running); err != nil {
			return err
		}
	}
	return nil
}

// giveSlots puts running work, in the order of its providers, into slots that nobody has.
func (t *transaction) giveSlots(ctx context.Context, process fleet.Process, policy int64, running []statement.ListWithoutSlotRow) error {
	if len(running) == 0 {
		return nil
	}
	var rows statement.Rows
	taken := make(map[int64]bool)
	provider, number := "", int64(0)
	for _, w := range running {
		if w.Provider != provider {
			list, err := t.takenSlots(ctx, process, fleet.ProviderName(w.Provider))
			if err != nil {
				return err
			}
			clear(taken)
			for _, s := range list {
				taken[s.Slot] = true
			}
			provider, number = w.Provider, 0
		}
		for number++; taken[number]; number++ { //nolint:revive // the next free one
		}
		rows = append(rows, []any{string(process), w.Provider, number, w.Subject, w.Lane, w.Epoch, policy - 1})
	}
	if err := t.q.PutSlots(ctx, rows); err != nil {
		return fmt.Errorf("give slots to what runs of %s: %w", process, err)
	}
	return nil
}

// settled is how long after a policy was written nobody claims under the one before any more.
const settled = time.Minute

// checkSlots looks for more works with slots than the newest policy allowed when they took them,
// for works with two, and for works that should have one. What took its slot under an older policy
// may be more than the limit is now.
func (t *transaction) checkSlots(ctx context.Context) (findings []Finding, err error) {
	env, err := t.environment(ctx)
	if err != nil {
		return nil, err
	}
	for _, process := range fleet.MachineProcesses() {
		limit := env.Policy.AtOnce(process)
		if limit == 0 {
			continue
		}
		counts, err := t.q.CountTakenSlots(ctx, statement.CountTakenSlotsParams{Process: string(process), Policy: env.Policy.Number})
		if err != nil {
			return nil, err
		}
		for _, c := range counts {
			if c.Slots > int64(limit) || c.Slots != c.Works {
				findings = append(findings, Finding{"I10", providerSubject(fleet.ProviderName(c.Provider)), fmt.Sprintf(
					"%d works of %s have %d slots, with a limit of %d", c.Works, process, c.Slots, limit)})
			}
		}
		since, err := t.q.GetPolicyTime(ctx, env.Policy.Number)
		if err != nil {
			return nil, err
		}
		running, err := t.q.ListWithoutSlot(ctx, string(process))
		if err != nil {
			return nil, err
		}
		for _, w := range running {
			if instant(w.Since).After(instant(since).Add(settled)) {
				findings = append(findings, Finding{"I10", w.Subject, fmt.Sprintf("%s epoch %d has no slot", process, w.Epoch)})
			}
		}
	}
	return findings, nil
}
