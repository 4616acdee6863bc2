package bmdb

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/agenda"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// Concurrency limits keep a provider that fails as a whole from being stormed: the policy may limit
// how much of recovery goes on at one provider at once, and in one location of it, whatever number
// of control planes claims. Rule 2 says how claims keep to that.
//
// What counts: a machine whose lane is held for recovery, also by a session that has ended; a
// claim that finds no room frees the lanes of the dead. A machine that recovery has restarted,
// until it is heard of, or the time that it has for that is over; what the provider refused has
// restarted nothing. The time of a reinstall begins when the provider says that it has made it, and
// is over after a day. What was started under a higher limit, or by a claim that had read of none:
// a limit that is lowered stops nothing that runs.
//
// Whatever frees a lane makes room, and wakes who waits for it.

// limited says whether a policy may limit how much of the process goes on at one provider at once.
func limited(process fleet.Process) bool { return process == fleet.ProcessRecovery }

// place is where a limit counts: a location of a provider, or all of the provider.
type place struct {
	provider fleet.ProviderName
	location string // "": all
}

// name is how statements know the place.
func (p place) name() string { return "⟨" + string(p.provider) + "│" + p.location + "⟩" }

// placeOf returns where a machine is, as its provider says.
func placeOf(m *machineRecord) place {
	p := place{provider: m.facts.Provider}
	if m.facts.Provided != nil {
		p.location = m.facts.Provided.Location
	}
	return p
}

// places are the places whose limits somebody in this place counts against.
func (p place) places() []place {
	if p.location == "" {
		return []place{p}
	}
	return []place{{provider: p.provider}, p}
}

// room is how many more may start in the place, with so many that count already.
func (p place) room(policy fleet.Policy, count int) int {
	most := policy.RecoveryAtOnce
	if p.location != "" {
		most = policy.RecoveryAtOncePerLocation
	}
	if most == 0 {
		return math.MaxInt
	}
	return most - count
}

func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(p.provider, q.provider), cmp.Compare(p.location, q.location))
}

// among returns which of those that count at the provider are in the place.
func (p place) among(counted []statement.ListLimitedRow) []statement.ListLimitedRow {
	if p.location == "" {
		return counted
	}
	var there []statement.ListLimitedRow
	for _, h := range counted {
		if h.Location == p.location {
			there = append(there, h)
		}
	}
	return there
}

// fullPlaces names the places without room for ListAgendaLimited.
func (c *claiming) fullPlaces() string {
	var names strings.Builder
	for _, p := range slices.SortedFunc(maps.Keys(c.full), place.compare) {
		names.WriteString(p.name())
	}
	return names.String()
}

// withoutRoom returns the places of the providers where no more recovery may start now. What dead
// sessions hold makes none full: who claims frees it, and where nobody does, that is to be told.
func (t *transaction) withoutRoom(ctx context.Context, providers []statement.Provider) (full []place, err error) {
	env, err := t.environment(ctx)
	if err != nil || !env.Policy.LimitsRecovery() {
		return nil, err
	}
	for _, row := range providers {
		all := place{provider: fleet.ProviderName(row.Name)}
		counted, err := t.counted(ctx, all.provider)
		if err != nil {
			return nil, err
		}
		counted = slices.DeleteFunc(counted, func(h statement.ListLimitedRow) bool { return holderDied(h, t.Now()) })
		if all.room(env.Policy, len(counted)) <= 0 {
			full = append(full, all)
			continue
		}
		there := make(map[place]int)
		for _, h := range counted {
			there[place{all.provider, h.Location}]++
		}
		for p, n := range there {
			if p != all && p.room(env.Policy, n) <= 0 {
				full = append(full, p)
			}
		}
	}
	return full, nil
}

// againAfter is how soon a provider without room is looked at again whose holders seem to be dead.
const againAfter = time.Second

// counted lists which machines of a provider count against the limit, and until when at least.
func (t *transaction) counted(ctx context.Context, provider fleet.ProviderName) ([]statement.ListLimitedRow, error) {
	counted, err := t.q.ListLimited(ctx, statement.ListLimitedParams{Provider: string(provider), Process: string(fleet.ProcessRecovery)})
	if err != nil {
		return nil, err
	}
	env, err := t.environment(ctx)
	if err != nil {
		return nil, err
	}
	now := micros(t.Now())
	kept := counted[:0]
	for _, h := range counted {
		// Nobody works on it: a step was taken, and its effect is waited for until the time of the step
		// is over, or the next one is due. That one may be put off for long, by a maintenance or a
		// backoff.
		if h.Session == "" {
			until := stepEnds(h, env)
			if h.DueRecovery != 0 {
				until = min(until, h.DueRecovery)
			}
			if until <= now {
				continue
			}
			h.DeadlineAt, h.EndedAt = until, 0
		}
		kept = append(kept, h)
	}
	return kept, nil
}

// stepEnds returns when the time of the newest step is over.
func stepEnds(h statement.ListLimitedRow, env fleet.Environment) int64 {
	r := fleet.Record{Repair: &fleet.Repair{Rung: fleet.Rung(h.Rung), At: instant(h.StepAt)}}
	if h.Status != "" {
		r.Provided = &fleet.Provided{Status: fleet.ProviderStatus(h.Status), At: instant(h.ProvidedAt)}
	}
	ends, begun := lifecycle.StepEnds(r, env)
	if !begun {
		return h.StepAt + lifecycle.LongestReinstall.Microseconds()
	}
	return micros(ends)
}

// countRecovery notes whether the machine counts against the limit while nobody holds it. Where it
// does not any more, there is room for another one.
func (t *transaction) countRecovery(m *machineRecord) {
	is := lifecycle.UnderRecovery(m.facts, *t.env, t.Now())
	if is == m.underRecovery {
		return
	}
	m.underRecovery = is
	t.buffer.machine(m)
	if !is {
		t.becomesDue(fleet.ProcessRecovery, m.facts.Provider, t.Now())
	}
}

// allFull says whether no provider that the claim asks for has room.
func (c *claiming) allFull() bool {
	return len(c.providers) > 0 && !slices.ContainsFunc(c.providers, func(name fleet.ProviderName) bool {
		_, full := c.full[place{provider: name}]
		return !full
	})
}

// hasRoom says whether more may start where the machine is, as it seems without
// locks: what is due where there is no room costs no locks.
func (c *claiming) hasRoom(ctx context.Context, t *transaction, a candidate) (bool, error) {
	env, err := t.environment(ctx)
	if err != nil || !env.Policy.LimitsRecovery() {
		return err == nil, err
	}
	for _, p := range (place{a.provider, a.location}).places() {
		if _, full := c.full[p]; full {
			return false, nil
		}
		all, err := c.countedAt(ctx, t, p.provider)
		if err != nil {
			return false, err
		}
		counted := p.among(all)
		if p.room(env.Policy, len(counted)) > 0 {
			continue
		}
		if err := c.knowProviders(ctx, t); err != nil {
			return false, err
		}
		c.full[p] = c.judgeCounted(t, counted)
		return false, nil
	}
	return true, nil
}

// countedAt returns what counts against the limits of a provider. It asks once for each look.
func (c *claiming) countedAt(ctx context.Context, t *transaction, provider fleet.ProviderName) ([]statement.ListLimitedRow, error) {
	if counted, known := c.counted[provider]; known {
		return counted, nil
	}
	counted, err := t.counted(ctx, provider)
	if err == nil {
		c.counted[provider] = counted
	}
	return counted, err
}

// knowProviders finds out at which providers the claim may find work.
func (c *claiming) knowProviders(ctx context.Context, t *transaction) error {
	if c.providers = c.request.Providers; len(c.providers) > 0 {
		return nil
	}
	names, err := t.q.ListProviderNames(ctx)
	for _, name := range names {
		c.providers = append(c.providers, fleet.ProviderName(name))
	}
	return err
}

// holderDied reports whether the session of a holder has ended, or may be ended.
func holderDied(h statement.ListLimitedRow, now time.Time) bool {
	return h.EndedAt != 0 || instant(h.DeadlineAt).Before(now)
}

// judgeCounted takes in those in a place without room whose sessions have ended, or may be ended:
// they are looked at next. It returns when to look at the place again if nothing wakes the claimer.
func (c *claiming) judgeCounted(t *transaction, counted []statement.ListLimitedRow) time.Time {
	now, again := t.Now(), t.Now().Add(agenda.LongestPause)
	for _, h := range counted {
		if !holderDied(h, now) {
			if deadline := instant(h.DeadlineAt); deadline.Before(again) {
				again = deadline
			}
			continue
		}
		dead := candidate{subject: h.ID}
		if _, tried := c.done[h.ID]; !tried && !slices.Contains(c.dead, dead) {
			c.dead = append(c.dead, dead)
		}
		again = now.Add(againAfter)
	}
	return again
}

// admit keeps, of the works that are about to start, those for which there is room. The entries of
// the others stay due. One row stands for a provider and all of its locations.
func (r *claimRound) admit(ctx context.Context) error {
	if len(r.starts) == 0 || !limited(r.claiming.request.Process) {
		return nil
	}
	wanted := make(map[place]int)
	for _, s := range r.starts {
		for _, p := range placeOf(s.machine).places() {
			wanted[p]++
		}
	}
	places := slices.SortedFunc(maps.Keys(wanted), place.compare) // a provider before its locations
	var providers []fleet.ProviderName
	for _, p := range places {
		if p.location == "" {
			providers = append(providers, p.provider)
		}
	}
	for _, provider := range providers {
		err := r.t.q.LockLimit(ctx, statement.LockLimitParams{Provider: string(provider), Process: string(fleet.ProcessRecovery)})
		if err != nil {
			return err
		}
	}
	env, err := r.t.reread(ctx) // what the limit is by now, and what runs, is read by later statements
	if err != nil || !env.Policy.LimitsRecovery() {
		return err
	}
	running := make(map[fleet.ProviderName][]statement.ListLimitedRow)
	for _, provider := range providers {
		if running[provider], err = r.t.counted(ctx, provider); err != nil {
			return err
		}
	}
	room := make(map[place]int)
	for _, p := range places {
		counted := p.among(running[p.provider])
		room[p] = p.room(env.Policy, len(counted))
		if room[p] < wanted[p] {
			r.full[p] = r.claiming.judgeCounted(r.t, counted)
		}
	}
	starts := r.starts
	r.starts = nil
	for _, s := range starts {
		places := placeOf(s.machine).places()
		if slices.ContainsFunc(places, func(p place) bool { return room[p] <= 0 }) {
			r.left = append(r.left, s.candidate)
			r.again = append(r.again, s.candidate)
			continue
		}
		for _, p := range places {
			room[p]--
		}
		r.starts = append(r.starts, s)
	}
	return nil
}
