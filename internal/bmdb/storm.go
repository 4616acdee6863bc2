package bmdb

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// storm is what one claim finds out about slots.
type storm struct {
	// full are the providers that have no slot left, with when to look at them again: their rows are
	// left, for the rest of the claim.
	full map[fleet.ProviderName]time.Time
	// made are the slots that this claim has made.
	made map[fleet.ProviderName]int
}

// crowdedAgain is how soon a provider is looked at again that is full of work whose holders seem to
// be dead.
const crowdedAgain = time.Second

// freedAt is when the first of the slots is freed if its holder is dead.
func freedAt(taken []statement.ListTakenSlotsRow, now time.Time) time.Time {
	first := now.Add(patient)
	for _, s := range taken {
		if at := instant(s.DeadlineAt); at.Before(first) {
			first = at
		}
	}
	if !first.After(now) {
		return now.Add(crowdedAgain)
	}
	return first
}

// admit leaves those candidates in the agenda for whom no slot is free, as it seems: a provider
// that is full costs no locks. In the place of theirs it puts those whose slots are held by the
// dead, which the claim is to free. again says that nothing was admitted, but that there may be
// more behind them.
func (c *claiming) admit(ctx context.Context, t *transaction, found []candidate) (admitted []candidate, again bool, err error) {
	if !limited(c.request.Process) || len(found) == 0 {
		return found, false, nil
	}
	env, err := t.environment(ctx)
	if err != nil {
		return nil, false, err
	}
	limit := env.Policy.AtOnce(c.request.Process)
	if limit == 0 {
		return found, false, nil
	}
	open := make(map[fleet.ProviderName]bool)
	for _, a := range found {
		free, known := open[a.provider]
		if !known {
			taken, err := t.takenSlots(ctx, c.request.Process, a.provider)
			if err != nil {
				return nil, false, err
			}
			if free = len(taken) < limit; !free {
				dead := c.dead(taken, a.provider, t.Now())
				if admitted = append(admitted, dead...); len(dead) == 0 {
					c.fill(a.provider, freedAt(taken, t.Now()))
				}
			}
			open[a.provider] = free
		}
		if free {
			admitted = append(admitted, a)
		} else {
			c.leave(a)
		}
	}
	return admitted, len(admitted) == 0, nil
}

// dead returns the machines whose slots are held by sessions that have ended or may be ended, but
// for those that were tried already.
func (c *claiming) dead(taken []statement.ListTakenSlotsRow, provider fleet.ProviderName, now time.Time) (list []candidate) {
	for _, s := range taken {
		_, tried := c.done[s.Subject]
		if deadline := instant(s.DeadlineAt); !tried && (s.EndedAt != 0 || deadline.Before(now)) {
			list = append(list, candidate{s.Subject, provider, deadline})
		}
	}
	return list
}

// fill notes that a provider has no slot left.
func (c *claiming) fill(provider fleet.ProviderName, until time.Time) {
	if c.full == nil {
		c.full = make(map[fleet.ProviderName]time.Time)
	}
	c.full[provider] = until
}

// beside returns the providers of the claim that are not full.
func (c *claiming) beside(ctx context.Context, t *transaction) (names []fleet.ProviderName, err error) {
	all := c.request.Providers
	if len(all) == 0 {
		rows, err := t.q.ListProviders(ctx)
		if err != nil {
			return nil, err
		}
		for _, p := range rows {
			all = append(all, fleet.ProviderName(p.Name))
		}
	}
	for _, name := range all {
		if _, full := c.full[name]; !full {
			names = append(names, name)
		}
	}
	return names, nil
}

// pageBeside is page when some providers are full: the others are looked at one by one, because
// what is due at those that are full may be all that is due for a long way.
func (c *claiming) pageBeside(ctx context.Context, t *transaction, floor time.Time, want int) (found []candidate, to time.Time, err error) {
	names, err := c.beside(ctx, t)
	if err != nil {
		return nil, to, err
	}
	to = t.Now()
	for _, name := range names {
		rows, err := t.q.ListRecoveryDueAfter(ctx, statement.ListRecoveryDueAfterParams{
			Provider: string(name), FromDueAt: floorMicros(floor), Now: micros(t.Now()), MaxRows: int64(want + len(c.done)),
		})
		if err != nil {
			return nil, to, err
		}
		for i, r := range rows {
			a := candidate{r.Subject, name, time.UnixMicro(r.DueAt).UTC()}
			if last := i+1 == want+len(c.done); last && a.dueAt.Before(to) {
				to = a.dueAt
			}
			if at, done := c.done[a.subject]; !done || !at.Equal(a.dueAt) {
				found = append(found, a)
			}
		}
	}
	slices.SortFunc(found, func(a, b candidate) int {
		return cmp.Or(a.dueAt.Compare(b.dueAt), strings.Compare(a.subject, b.subject))
	})
	if len(found) > want {
		found = found[:want]
		if last := found[want-1].dueAt; last.Before(to) {
			to = last
		}
	}
	return found, to, nil
}

// firstBeside is firstRow when some providers are full: those are looked at again when the first of
// their slots may be freed.
func (c *claiming) firstBeside(ctx context.Context, t *transaction, floor time.Time) (first time.Time, err error) {
	sooner := func(at time.Time) {
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	for _, until := range c.full {
		sooner(until)
	}
	names, err := c.beside(ctx, t)
	if err != nil {
		return time.Time{}, err
	}
	for _, name := range names {
		rows, err := t.q.ListRecoveryNextAfter(ctx, statement.ListRecoveryNextAfterParams{Provider: string(name), FromDueAt: floorMicros(floor)})
		if err != nil {
			return time.Time{}, err
		}
		for _, dueAt := range rows {
			sooner(time.UnixMicro(dueAt).UTC())
		}
	}
	return first, nil
}
