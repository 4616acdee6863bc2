package lifecycle

import (
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// DecideProvider decides the processes whose subject is a provider: provision and update, in this
// order. Both are wanted, unless a person has paused the provider; the question is when.
func DecideProvider(p fleet.ProviderRecord, env fleet.Environment, now time.Time) []Decision {
	pass := dueAt(next(p.LastPassAt, env.Policy.ProvisionInterval, now), "a pass starts every %s", env.Policy.ProvisionInterval)
	if p.Paused != nil {
		pass = waiting("%s", paused(p.Name, *p.Paused))
	}
	interval, why := env.Policy.UpdateSettledInterval, "all machines are settled"
	if p.Changing {
		interval, why = env.Policy.UpdateInterval, "machines are changing"
	}
	update := dueAt(next(p.LastUpdateAt, interval, now), "refreshed every %s: %s", interval, why)
	return []Decision{
		decide(fleet.ProcessProvision, pass, p.Holds, p.Backoffs, now),
		decide(fleet.ProcessUpdate, update, p.Holds, p.Backoffs, now),
	}
}

// ahead is how far two readings of the database's clock may differ while nobody sets it.
const ahead = time.Minute

// next is one interval after the last time. When there was none it is long ago, so that it is due.
// One that is to come is none: the database's clock was set back since.
func next(last time.Time, interval time.Duration, now time.Time) time.Time {
	if last.IsZero() || last.After(now.Add(ahead)) {
		return time.Unix(0, 0).UTC()
	}
	return last.Add(interval)
}

// paused says who keeps a provider from creating machines, since when, and what ends it.
func paused(provider fleet.ProviderName, p fleet.Pause) string {
	return fmt.Sprintf("paused by %s since %s: %s; `ironherd provider resume %s --reason WHY` ends it", p.Actor, fleet.Instant(p.At), p.Reason, provider)
}
