package bmdb

import (
	"context"
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// silence is how many machines are not heard that ought to be. Agents and installed systems are
// judged apart: agents that speak do not show that systems which were just written find us, nor the
// other way round.
type silence struct {
	// silent are the machines whose agent is not heard, of all that are expected to have one.
	// unanswered of them get their first one, and their host has not answered for so long that
	// recovery is to restart it.
	silent, unanswered, agents int64
	// leftOut are machines for which recovery has no step (lifecycle.HasStep), whose host refuses us
	// (lifecycle.RefusesUs), at which recovery has failed for longer than a stop lasts, or whose
	// provider has had nobody who takes steps there for longer than a stop lasts, and that have been
	// silent for longer than that, too. They are none of the former: they stay silent until a person
	// acts, and would keep the next stop from coming.
	leftOut int64
	// notUp are the installed systems that have not come up in their time, of those that have, since
	// the first of the former was written, or that have not. A system that has time left says nothing
	// yet, for or against us.
	notUp, booted int64
}

// many reports whether so many are not heard that the fault is probably ours.
func (s silence) many(policy fleet.Policy) bool {
	many := func(missing, all int64) bool {
		return policy.SuspectShare > 0 && missing >= int64(max(policy.SuspectLeast, 1)) && missing*100 >= int64(policy.SuspectShare)*all
	}
	return many(s.silent, s.agents) || many(s.notUp, s.booted)
}

// few reports whether fewer than half as many are not heard.
func (s silence) few(policy fleet.Policy) bool {
	few := func(missing, all int64) bool {
		return policy.SuspectShare == 0 || missing*200 < int64(policy.SuspectShare)*all || missing == 0
	}
	return few(s.silent, s.agents) && few(s.notUp, s.booted)
}

// any reports whether a machine is not heard.
func (s silence) any() bool { return s.silent > 0 || s.notUp > 0 }

func (s silence) String() string {
	agents := fmt.Sprintf("%d of %d machines with an agent are silent", s.silent, s.agents)
	if s.unanswered > 0 {
		agents = fmt.Sprintf("%d of %d machines are silent, of which %d have never answered", s.silent, s.agents, s.unanswered)
	}
	if s.leftOut > 0 {
		agents += fmt.Sprintf(", without %d that have been silent for long, and that recovery cannot restart", s.leftOut)
	}
	booted := fmt.Sprintf("%d of %d installed systems did not come up", s.notUp, s.booted)
	switch {
	case s.notUp == 0:
		return agents
	case s.silent == 0:
		return booted
	}
	return agents + ", and " + booted
}

// silence counts the machines that are not heard. It counts most of them by their state. The state
// is written when somebody judges the machine, and time alone makes nobody do that before a step of
// recovery is due. So hosts that have never answered, and systems that did not come up in time, are
// counted by their facts.
func (t *transaction) silence(ctx context.Context, env fleet.Environment) (s silence, err error) {
	providers, err := t.q.ListProviders(ctx)
	if err != nil {
		return silence{}, err
	}
	parts, err := t.attendance(ctx)
	if err != nil {
		return silence{}, err
	}
	before := t.Now().Add(-env.Policy.SuspectFor)
	recovers, unserved := make(map[string]bool, len(providers)), make(map[string]bool)
	for _, p := range providers {
		// Who comes back within the time of a stop would make one silence two.
		unserved[p.Name] = parts.held(fleet.RoleRecoverer) && !parts.serves(fleet.RoleRecoverer, fleet.ProviderName(p.Name)) &&
			parts.servedUntil(fleet.RoleRecoverer, fleet.ProviderName(p.Name)) < micros(before)
		recovers[p.Name] = lifecycle.HasStep(leversOf(p.Levers), env.Policy) && !unserved[p.Name]
	}
	unanswered, err := t.q.CountUnanswered(ctx, statement.CountUnansweredParams{
		Since: micros(t.Now().Add(-env.Policy.NeverSpokeAfter)), Process: string(fleet.ProcessAgentStart), State: string(fleet.StateProvided),
	})
	if err != nil {
		return silence{}, err
	}
	for _, r := range unanswered {
		if recovers[r.Provider] {
			s.unanswered += r.N
		}
	}
	s.silent, s.agents = s.unanswered, s.unanswered
	rows, err := t.q.CountStates(ctx)
	if err != nil {
		return silence{}, err
	}
	var oldest int64
	for _, r := range rows {
		switch fleet.State(r.State) {
		case fleet.StateSilent, fleet.StateBooting:
			if r.N == 0 {
				continue
			}
			var missing, first int64 // where nobody takes steps, those that are silent count as agents
			if !unserved[r.Provider] {
				if missing, first, err = t.countNotUp(ctx, env, r.Provider, fleet.State(r.State)); err != nil {
					return silence{}, err
				}
			}
			if missing > 0 && (oldest == 0 || first < oldest) {
				oldest = first
			}
			s.notUp += missing
			if fleet.State(r.State) != fleet.StateSilent {
				continue
			}
			agents := r.N - missing
			late, err := t.notRestarted(ctx, r.Provider, fleet.State(r.State), recovers[r.Provider], before)
			if err != nil {
				return silence{}, err
			}
			dead := min(late, agents)
			s.leftOut += dead
			agents -= dead
			s.silent, s.agents = s.silent+agents, s.agents+agents
		case fleet.StateStarted, fleet.StateAvailable, fleet.StateInstalling, fleet.StateRefused:
			s.agents += r.N
		}
	}
	if s.notUp == 0 {
		return s, nil
	}
	up, err := t.q.CountUpSince(ctx, oldest)
	s.booted = up + s.notUp
	return s, err
}

// notRestarted counts the machines of a provider that have been in that state since before an
// instant, and that recovery does not restart.
func (t *transaction) notRestarted(ctx context.Context, provider string, state fleet.State, recovers bool, before time.Time) (int64, error) {
	if !recovers {
		late, err := t.q.CountLate(ctx, statement.CountLateParams{Provider: provider, State: string(state), Before: micros(before)})
		return late.N, err
	}
	return t.q.CountNotRestarted(ctx, statement.CountNotRestartedParams{
		Provider: provider, State: string(state), Before: micros(before),
		Recovery: string(fleet.ProcessRecovery), Process: string(fleet.ProcessAgentStart),
	})
}

// countNotUp counts the machines of a provider in that state whose installed system has not come up
// in its time, and says when the first of their disks was written.
func (t *transaction) countNotUp(ctx context.Context, env fleet.Environment, provider string, state fleet.State) (n, first int64, err error) {
	if state == fleet.StateSilent {
		row, err := t.q.CountNotUp(ctx, statement.CountNotUpParams{Provider: provider, State: string(state)})
		return row.N, row.Oldest, err
	}
	boot := env.Policy.BootTimeout
	since := t.Now().Add(-boot)
	if env.Restored != "" {
		return 0, 0, nil // probes wait for an operator
	}
	if env.ListenerUpSince.IsZero() || env.ListenerUpSince.After(since) {
		since = env.ListenedUntil.Add(-boot) // nobody has listened in the time of those that are younger
		if since.Before(env.ListenedSince) {
			return 0, 0, nil
		}
	}
	if t.Now().Before(env.ListenerFullUntil) { // whose time has ended since may have found no room
		if before := env.ListenerFullSince.Add(-boot); before.Before(since) {
			since = before
		}
	}
	row, err := t.q.CountNotCalled(ctx, statement.CountNotCalledParams{Provider: provider, State: string(state), Since: micros(since)})
	return row.N, row.Oldest, err
}
