package bmdb

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/agenda"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// Concurrency limits keep a provider that fails as a whole from being stormed: the policy may limit
// how much of a process goes on at one provider at once, whatever number of control planes claims
// (rule 2).
//
// Who wants to start such work locks one row for the provider and the process, after everything
// else that its claim locks. It then reads the policy and counts, by later statements, whose lanes
// are held for the process there. So claims take turns, shortly, and each counts what the others
// have started. A machine that was restarted counts until it is heard of, or until the time that it
// has for that is over. Whatever frees a lane makes room, and wakes who waits for it. The dead
// count until their lanes are freed, which a claim that finds no room sees to. A limit that is
// lowered lets run what runs, and counts it. What was started by a claim that had read a policy
// without a limit, the moment before, counts as well.

// limited says whether a policy may limit how much of the process goes on at one provider at once.
func limited(process fleet.Process) bool { return process == fleet.ProcessRecovery }

// againAfter is how soon a provider without room is looked at again whose holders seem to be dead.
const againAfter = time.Second

// limitedHolders lists which machines of a provider count against the limit of the process, and
// until when at least.
func (t *transaction) limitedHolders(
	ctx context.Context, process fleet.Process, provider fleet.ProviderName,
) ([]statement.ListLimitedRow, error) {
	holders, err := t.q.ListLimited(ctx, statement.ListLimitedParams{Provider: string(provider), Process: string(process)})
	if err != nil {
		return nil, err
	}
	now := micros(t.Now())
	kept := holders[:0]
	for _, h := range holders {
		// Nobody holds it: a step was taken, and its effect is waited for until the next one is due.
		if h.Session == "" {
			if h.DueRecovery <= now {
				continue
			}
			h.DeadlineAt, h.EndedAt = h.DueRecovery, 0
		}
		kept = append(kept, h)
	}
	return kept, nil
}

// countRecovery notes whether the machine counts against the limit while nobody holds it. Where it
// does not any more, there is room for another one.
func (t *transaction) countRecovery(ctx context.Context, m *machineRecord) error {
	env, err := t.environment(ctx)
	if err != nil {
		return err
	}
	is := lifecycle.UnderRecovery(m.record, env, t.Now())
	if is == m.underRecovery {
		return nil
	}
	m.underRecovery = is
	t.buffer.machine(m)
	if !is {
		t.becomesDue(fleet.ProcessRecovery, m.record.Provider, t.Now())
	}
	return nil
}

// allFull says whether no provider that the claim asks for has room.
func (c *claiming) allFull() bool {
	return len(c.providers) > 0 && !slices.ContainsFunc(c.providers, func(name fleet.ProviderName) bool {
		_, full := c.full[name]
		return !full
	})
}

// hasRoom says whether more of the process may start at the provider, as it seems without locks:
// what is due at one that has no room costs no locks.
func (c *claiming) hasRoom(ctx context.Context, t *transaction, provider fleet.ProviderName) (bool, error) {
	if _, full := c.full[provider]; full {
		return false, nil
	}
	env, err := t.environment(ctx)
	if err != nil {
		return false, err
	}
	limit := env.Policy.AtOnce(c.request.Process)
	if limit == 0 {
		return true, nil
	}
	holders, err := t.limitedHolders(ctx, c.request.Process, provider)
	if err != nil || len(holders) < limit {
		return err == nil, err
	}
	if c.providers = c.request.Providers; len(c.providers) == 0 {
		rows, err := t.q.ListProviders(ctx)
		if err != nil {
			return false, err
		}
		for _, p := range rows {
			c.providers = append(c.providers, fleet.ProviderName(p.Name))
		}
	}
	c.full[provider] = c.judgeHolders(t, provider, holders)
	return false, nil
}

// judgeHolders takes in those of a provider without room whose sessions have ended, or may be
// ended: they are looked at next. It returns when to look at the provider again if nothing wakes
// the claimer.
func (c *claiming) judgeHolders(t *transaction, provider fleet.ProviderName, holders []statement.ListLimitedRow) time.Time {
	now, again := t.Now(), t.Now().Add(agenda.LongestPause)
	for _, h := range holders {
		deadline := instant(h.DeadlineAt)
		if h.EndedAt == 0 && !deadline.Before(now) {
			if deadline.Before(again) {
				again = deadline
			}
			continue
		}
		if _, tried := c.done[h.ID]; !tried {
			c.dead = append(c.dead, candidate{subject: h.ID, provider: provider})
		}
		again = now.Add(againAfter)
	}
	return again
}

// takeDead returns what judgeHolders has found, each machine once, and forgets that there was no
// room.
func (c *claiming) takeDead() (list []candidate) {
	for _, a := range c.dead {
		delete(c.full, a.provider)
		if !slices.ContainsFunc(list, func(b candidate) bool { return a.subject == b.subject }) {
			list = append(list, a)
		}
	}
	c.dead = nil
	return list
}

// admit keeps, of the works that are about to start, those for which there is room. The entries of
// the others stay due.
func (r *claimRound) admit(ctx context.Context) error {
	process := r.claiming.request.Process
	if len(r.starts) == 0 || !limited(process) {
		return nil
	}
	wanted := make(map[fleet.ProviderName]int)
	for _, s := range r.starts {
		wanted[s.machine.record.Provider]++
	}
	providers := slices.Sorted(maps.Keys(wanted))
	for _, provider := range providers {
		err := r.t.q.LockLimit(ctx, statement.LockLimitParams{Provider: string(provider), Process: string(process)})
		if err != nil {
			return err
		}
	}
	r.t.env = nil // what the limit is by now, and what runs, is read by later statements
	env, err := r.t.environment(ctx)
	if err != nil {
		return err
	}
	limit := env.Policy.AtOnce(process)
	if limit == 0 {
		return nil
	}
	room := make(map[fleet.ProviderName]int)
	for _, provider := range providers {
		holders, err := r.t.limitedHolders(ctx, process, provider)
		if err != nil {
			return err
		}
		if room[provider] = limit - len(holders); room[provider] < wanted[provider] {
			r.limits[provider] = r.claiming.judgeHolders(r.t, provider, holders)
		}
	}
	starts := r.starts
	r.starts = nil
	for _, s := range starts {
		provider := s.machine.record.Provider
		if room[provider]--; room[provider] >= 0 {
			r.starts = append(r.starts, s)
			continue
		}
		r.left = append(r.left, s.candidate)
		r.again = append(r.again, s.candidate)
	}
	return nil
}
