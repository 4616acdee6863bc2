package lifecycle

import (
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// silentAfter is how long an agent may be silent: at least three of the intervals that it was asked
// for.
func (c judgement) silentAfter() time.Duration {
	return max(c.env.Policy.SilentAfter, 3*c.env.PromisedInterval)
}

// LongestSilence returns the longest time that an agent or an installed system may be silent before
// that counts. With a listener that is up for that long, every silence counts that lasts as long.
func LongestSilence(env fleet.Environment) time.Duration {
	return max(judgement{env: env}.silentAfter(), env.Policy.NeverSpokeAfter, env.Policy.BootTimeout)
}

// workedOn returns from when on it counts that a host does not answer: not during a maintenance or
// a quarantine, whose end is recorded as that of a maintenance, nor before the machine was last
// restarted on purpose.
func (c judgement) workedOn(since time.Time) time.Time {
	if m := c.r.Maintenance; m != nil && m.Until != nil {
		since = later(since, *m.Until)
	}
	return later(since, c.restartedAt())
}

// activeSince is since when the provider says that the machine is on: it was switched on then, or
// was there again. Zero: it does not say so.
func (c judgement) activeSince() (since time.Time) {
	if p := c.r.Provided; p != nil && p.Status == fleet.ProviderStatusActive {
		since = p.At
	}
	return since
}

// silentSince returns from when on silence counts. It does not count while no agent listener is up,
// nor where workedOn says so.
func (c judgement) silentSince(since time.Time) time.Time {
	since = c.workedOn(since)
	if c.env.ListenerUpSince.IsZero() {
		return later(since, c.now)
	}
	return later(since, c.env.ListenerUpSince)
}

// silentFor returns when silence since an instant has lasted for so long, and counts.
func (c judgement) silentFor(since time.Time, lasting time.Duration) time.Time {
	return c.withRoom(c.silentSince(since).Add(lasting))
}

// withRoom puts off what becomes due because nothing was heard, to when a listener has had room for
// agents again for long enough.
func (c judgement) withRoom(at time.Time) time.Time { return later(at, c.env.ListenerFullUntil) }

// sayRoom adds to the reason that something waits for a listener that turns callers away.
func (c judgement) sayRoom(w want) want {
	if until := c.env.ListenerFullUntil; c.now.Before(until) && w.dueAt.Equal(until) {
		w.reason += "; not before then, because an agent listener turns callers away, for want of room or because its certificate has expired"
	}
	return w
}

// lasted reports whether silence since an instant had lasted for so long when a listener went away
// last, counted while it was up.
func (c judgement) lasted(since time.Time, lasting time.Duration) bool {
	until := c.env.ListenedUntil
	return !until.IsZero() && !later(c.workedOn(since), c.env.ListenedSince).Add(lasting).After(until)
}

// silent reports whether the machine is in trouble now. That a listener turns callers away keeps
// machines from becoming silent, and makes none heard that was silent before. Nor does a listener
// that comes back: what is done about such a machine waits as for all others.
func (c judgement) silent() bool {
	t, ok := c.expected()
	return ok && (t.before || c.counts(t))
}

// excused reports whether the agent in charge had fallen silent by the time from which on its
// silence counts anew: the end of a maintenance or of a quarantine, or a restart on purpose. Then
// nobody knows that it is there before it is heard. A heartbeat ends it, and time does not.
func (c judgement) excused() bool {
	if !c.spoken() {
		return false
	}
	last := c.r.AgentSeen.LastAt
	from := c.workedOn(last)
	return !from.After(c.now) && !last.Add(c.silentAfter()).After(from)
}

// unheard says since when an agent that is excused was not heard.
func (c judgement) unheard() string {
	last := c.r.AgentSeen.LastAt
	return fmt.Sprintf("the agent was not heard since %s, and its silence counts from %s on", fleet.Instant(last), fleet.Instant(c.workedOn(last)))
}

// counts reports whether a trouble counts by now, and something is done about it.
func (c judgement) counts(t trouble) bool {
	full := t.unheard && c.now.Before(c.env.ListenerFullUntil) && !t.at.Before(c.env.ListenerFullSince)
	return !full && !t.at.After(c.now)
}
