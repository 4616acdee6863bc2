package bmdb

import (
	"context"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// WatchSilence stops recovery when so many machines are silent at once, or so many installed
// systems do not come up, that the fault is probably ours: the listener, the network, a
// certificate, the clock. It returns what it did in words; "" when it did nothing. Called by the
// janitor.
//
// It stops recovery once for each silence, which is known from then on. When the time of the stop
// is over and the machines are silent still, recovery goes on. The silence is over when less than
// half as many machines are silent: otherwise a number about the limit would stop recovery again
// and again. Machines that are left out do not keep it from being over (silence.leftOut). When they
// count again, as where their provider answers after hours, they may stop recovery once more.
//
// When a silence ends before its stop does, the machines that are silent still have the time of a
// step from then on. They may be on their way, behind the others: what has passed of their time,
// has passed while nobody could be heard.
//
// A stop that others have made, and that ends, it follows in time: machines that fell silent
// meanwhile may all be due for a step at that end. What they have asked for it does not cut short.
//
// It also stops recovery while the budget of recovery is spent.
//
// In the first minute of a process it lets nothing go on, and stops nothing while nobody has the
// role of the recoverer: who starts together with this process may serve what nobody does yet.
// Later it stops recovery also while nobody has that role. Whoever takes it again may act before
// the guard has looked.
func (db *DB) WatchSilence(ctx context.Context) (did string, err error) {
	return read(ctx, db.update, "watch silence", func(ctx context.Context, t *transaction) (string, error) {
		if err := t.lockRecovery(ctx); err != nil {
			return "", err
		}
		parts, err := t.attendance(ctx)
		if err != nil || parts.early && !parts.held(fleet.RoleRecoverer) {
			return "", err
		}
		known, err := t.silenceIsKnown(ctx)
		if err != nil {
			return "", err
		}
		found, err := t.silence(ctx, *t.env)
		if err != nil {
			return "", err
		}
		if parts.early && !found.many(t.env.Policy) {
			return "", nil
		}
		return t.watch(ctx, found, known)
	})
}

// watch does what WatchSilence promises, where so many machines are found silent.
func (t *transaction) watch(ctx context.Context, found silence, known bool) (did string, err error) {
	policy, stop, now := t.env.Policy, t.env.RecoveryHold, t.Now()
	if !stopped(stop, now) {
		stop = nil
	}
	from, guards := guardsFrom(stop, now)
	grace := stop != nil && stop.Cause == fleet.StopGrace
	switch {
	case found.many(policy) && !known && guards:
		if err := t.knowSilence(ctx, true); err != nil {
			return "", err
		}
		did = found.String() + ": the fault is probably ours (listener, network, certificate, clock)"
		return did, t.guard(ctx, fleet.StopSilence, from.Add(policy.SuspectFor), did)
	case follows(stop, policy, now), found.any() && grace:
		return "", nil
	case found.few(policy) && found.any() && SuspectsUs(stop):
		if err := t.knowSilence(ctx, false); err != nil {
			return "", err
		}
		did = found.String() + "; the others were heard again, and these still have time"
		return did, t.guard(ctx, fleet.StopGrace, now.Add(policy.RecoveryStepTimeout), did)
	case found.few(policy) && (known || grace):
		if err := t.knowSilence(ctx, false); err != nil {
			return "", err
		}
		switch did = found.String() + ": recovery goes on"; {
		case grace || SuspectsUs(stop):
			return did, t.endStop(ctx, actorBMDB, "recovery: "+did)
		case stop != nil:
			return "", nil // it is stopped for the budget
		}
		return did, nil // it went on when the time of the stop was over
	case stop == nil:
		until, err := t.budgetSpent(ctx, policy)
		if err != nil || until.IsZero() {
			return "", err
		}
		if least := now.Add(leastStop); until.Before(least) {
			until = least
		}
		did = spent(policy)
		return did, t.guard(ctx, fleet.StopBudget, until, did)
	}
	return "", nil
}

// guard stops recovery until then. It is the policy that allows no more than the budget.
func (t *transaction) guard(ctx context.Context, cause fleet.StopCause, until time.Time, reason string) error {
	actor := actorBMDB
	if cause == fleet.StopBudget {
		actor = fleet.ActorPolicy
	}
	return t.stopRecovery(ctx, fleet.RecoveryHold{Until: &until, Actor: actor, Cause: cause, Reason: reason})
}

// silenceIsKnown reports whether recovery was stopped for the silence that there is.
func (t *transaction) silenceIsKnown(ctx context.Context) (bool, error) {
	n, err := t.q.CountKnownSilences(ctx)
	return n > 0, err
}

// knowSilence records that recovery was stopped for the silence that there is, or that this one is
// over.
func (t *transaction) knowSilence(ctx context.Context, known bool) error {
	if known {
		return t.q.PutKnownSilence(ctx, micros(t.Now()))
	}
	return t.q.DeleteKnownSilence(ctx)
}

// SuspectsUs reports whether a stop was made because so many machines were silent at once that the
// fault is probably ours.
func SuspectsUs(h *fleet.RecoveryHold) bool { return h != nil && h.Cause == fleet.StopSilence }

// handover is how long before the end of another's stop the guard against a silence takes its
// place. Recovery acts at the instant at which a stop ends, and the janitor may be late.
const handover = time.Minute

// guardsFrom says from when on the guard may stop recovery for a silence, beside the stop that
// there is: it follows one that others have made, and takes the place of one that gives time to the
// last of a silence.
func guardsFrom(h *fleet.RecoveryHold, now time.Time) (from time.Time, ok bool) {
	switch {
	case h == nil || h.Cause == fleet.StopGrace:
		return now, true
	case SuspectsUs(h) || h.Until == nil || h.Until.After(now.Add(handover)):
		return time.Time{}, false
	}
	return *h.Until, true
}

// follows reports whether the guard has just stopped recovery in the place of others, whose stop
// would last still. It lasts for longer than one that is made now.
func follows(h *fleet.RecoveryHold, policy fleet.Policy, now time.Time) bool {
	return SuspectsUs(h) && now.Sub(h.At) < handover && h.Until.Sub(now) > policy.SuspectFor
}
