package bmdb

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// HoldRecovery stops the line until then, or until ResumeRecovery: recovery reboots, power-cycles,
// reinstalls and quarantines no machine. Agents are started as before. KindConflict where it is
// stopped for longer: whoever stopped it counts on that. So it is where another person's stop lasts
// as long. One that lasts longer takes the place of that, without a moment between them, and its
// reason ends with that of the other.
func (db *DB) HoldRecovery(ctx context.Context, actor string, until *time.Time, reason string) error {
	return db.update(ctx, "hold recovery", func(ctx context.Context, t *transaction) error {
		if err := t.checkEnd("stop", until); err != nil {
			return err
		}
		if err := t.lockRecovery(ctx); err != nil {
			return err
		}
		if h := t.env.RecoveryHold; holds(h, t.Now()) {
			switch {
			case shortens(h.Until, until):
				ends := "`ironherd recovery resume` ends that first"
				if err := t.refuseSpent(ctx, *t.env); fleet.KindOf(err) == fleet.KindConflict {
					ends = "that cannot be ended now: ask for a later end, or for none"
				} else if err != nil {
					return err
				}
				return fleet.Errorf(fleet.KindConflict, "recovery is stopped for longer by %s: %s; %s", stopper(h), h.Reason, ends)
			case anothers(h.Actor, actor) && !shortens(until, h.Until):
				return fleet.Errorf(fleet.KindConflict, "recovery is stopped already by %s: %s; `ironherd recovery resume` ends that first", stopper(h), h.Reason)
			}
			return t.holdRecovery(ctx, actor, until, withOthers(h, actor, reason))
		}
		return t.holdRecovery(ctx, actor, until, reason)
	})
}

// alsoStopped begins what the reason of a stop tells of another whose place it has taken.
const alsoStopped = "; also stopped by "

// withOthers returns the reason of the actor's stop, with those of all others in whose place it is:
// who ends it ends theirs, too.
func withOthers(h *fleet.RecoveryHold, actor, reason string) string {
	others := strings.Split(h.Reason, alsoStopped)
	if others[0] = stopper(h) + ": " + others[0]; !anothers(h.Actor, actor) {
		others = others[1:]
	}
	for _, o := range others {
		if !strings.HasPrefix(o, actor+": ") && !strings.HasPrefix(o, actor+" until ") {
			reason += alsoStopped + o
		}
	}
	return reason
}

// HoldOfAnother says whose stop it is, until when and why, where another person has made it; "":
// it is the actor's, or there is none.
func HoldOfAnother(h *fleet.RecoveryHold, actor string) string {
	if h == nil || !anothers(h.Actor, actor) {
		return ""
	}
	return stopper(h) + ": " + h.Reason
}

// stopper says who has made a stop, and until when.
func stopper(h *fleet.RecoveryHold) string {
	if h.Until == nil {
		return fleet.ShownActor(h.Actor)
	}
	return fleet.ShownActor(h.Actor) + " until " + fleet.Instant(*h.Until)
}

func (t *transaction) holdRecovery(ctx context.Context, actor string, until *time.Time, reason string) error {
	err := t.q.PutRecoveryHold(ctx, statement.PutRecoveryHoldParams{At: micros(t.Now()), Until: microsPointer(until), Actor: actor, Reason: reason})
	if err != nil {
		return err
	}
	ends := "until somebody ends it"
	if until != nil {
		ends = "until " + fleet.Instant(*until)
	}
	if err := t.recordOfLine(ctx, actor, fleet.EventPaused, fmt.Sprintf("recovery, %s: %s", ends, reason)); err != nil {
		return err
	}
	// It may be shorter than the one before.
	return t.renumber(ctx)
}

// recordOfLine appends to the history of each provider what concerns recovery everywhere.
func (t *transaction) recordOfLine(ctx context.Context, actor string, event fleet.Event, detail string) error {
	names, err := t.q.ListProviderNames(ctx)
	for _, name := range names {
		t.recordEvent(fleet.Subject{Provider: fleet.ProviderName(name)}, actor, fleet.ProcessRecovery, event, detail)
	}
	return err
}

// ResumeRecovery ends the stop. Machines that are silent together at that time, so many that they
// stop the line, do not stop it again until most of them have been heard. KindConflict when there
// is no stop, or when it is for the budget of recovery, which would stop the line again at once.
func (db *DB) ResumeRecovery(ctx context.Context, actor, reason string) error {
	return db.update(ctx, "resume recovery", func(ctx context.Context, t *transaction) error {
		if err := t.lockRecovery(ctx); err != nil {
			return err
		}
		env := *t.env
		if !holds(env.RecoveryHold, t.Now()) {
			return fleet.Errorf(fleet.KindConflict, "recovery is not stopped")
		}
		if err := t.refuseSpent(ctx, env); err != nil {
			return err
		}
		found, err := t.silence(ctx, env)
		if err != nil {
			return err
		}
		detail := "recovery"
		if reason != "" {
			detail += ": " + reason
		}
		if found.many(env.Policy) || env.RecoveryHold.Actor == actorBMDB && !found.few(env.Policy) {
			// A stop of the BMDB's own that is over is what WatchSilence leaves alone.
			err = t.q.PutRecoveryHold(ctx, statement.PutRecoveryHoldParams{
				At: micros(t.Now()), Until: micros(t.Now()), Actor: actorBMDB, Reason: detail,
			})
		} else {
			err = t.q.DeleteRecoveryHold(ctx)
		}
		if err != nil {
			return err
		}
		if err := t.recordOfLine(ctx, actor, fleet.EventResumed, detail); err != nil {
			return err
		}
		return t.renumber(ctx)
	})
}

// holds reports whether a stop is one at that time.
func holds(h *fleet.RecoveryHold, at time.Time) bool {
	return h != nil && (h.Until == nil || h.Until.After(at))
}

// faultIsOurs ends the reason of a stop that WatchSilence makes for a silence.
const faultIsOurs = ": the fault is probably ours (listener, network, certificate, clock)"

// haveTime ends the reason of the stop that follows it when most of the machines have been heard
// again.
const haveTime = "; the others were heard again, and these still have time"

// SuspectsUs reports whether a stop was made because so many machines were silent at once that the
// fault is probably ours.
func SuspectsUs(h *fleet.RecoveryHold) bool {
	return h != nil && h.Actor == actorBMDB && strings.HasSuffix(h.Reason, faultIsOurs)
}

// givesTime reports whether a stop is the one that follows such a stop.
func givesTime(h *fleet.RecoveryHold) bool {
	return h != nil && h.Actor == actorBMDB && strings.HasSuffix(h.Reason, haveTime)
}

// handover is how long before the end of another's stop the guard against a silence takes its
// place. Recovery acts at the instant at which a stop ends, and the janitor may be late.
const handover = time.Minute

// guardsFrom says from when on the guard may stop recovery for a silence, beside the stop that
// there is: it follows one that others have made. Its own is the memory of a silence that it knows,
// or gives time to the last of one.
func guardsFrom(h *fleet.RecoveryHold, now time.Time) (from time.Time, ok bool) {
	switch {
	case h == nil || givesTime(h):
		return now, true
	case h.Actor == actorBMDB || h.Until == nil || h.Until.After(now.Add(handover)):
		return time.Time{}, false
	}
	return *h.Until, true
}

// follows reports whether the guard has just stopped recovery in the place of others, whose stop
// would hold still. It lasts for longer than one that is made now.
func follows(h *fleet.RecoveryHold, policy fleet.Policy, now time.Time) bool {
	return SuspectsUs(h) && now.Sub(h.At) < handover && h.Until.Sub(now) > policy.SuspectFor
}

// refuseSpent fails where recovery is stopped because its budget is spent.
func (t *transaction) refuseSpent(ctx context.Context, env fleet.Environment) error {
	h := env.RecoveryHold
	if h.Actor != fleet.ActorPolicy && (h.Actor != actorBMDB || SuspectsUs(h)) {
		return nil
	}
	until, err := t.budgetSpent(ctx, env.Policy)
	if err != nil || until.IsZero() {
		return err
	}
	return fleet.Errorf(fleet.KindConflict, "%s: it goes on by itself, at %s at the earliest; with a higher limit, `ironherd recovery resume` ends the stop", spent(env.Policy), fleet.Instant(until))
}

// budgetWindow is the time in which the budget of recovery counts, and leastStop how long the line
// stops at least when it is spent: each stop has every machine judged again.
const (
	budgetWindow = time.Hour
	leastStop    = 10 * time.Minute
)

// budgetSpent returns from when on recovery may restart a machine again, as the policy allows a
// number within an hour; zero: now.
func (t *transaction) budgetSpent(ctx context.Context, policy fleet.Policy) (until time.Time, err error) {
	if policy.RecoveryPerHour == 0 {
		return time.Time{}, nil
	}
	row, err := t.q.CountRecoveryRestarts(ctx, micros(t.Now().Add(-budgetWindow)))
	if err != nil || row.N < int64(policy.RecoveryPerHour) {
		return time.Time{}, err
	}
	return instant(row.Oldest).Add(budgetWindow), nil
}

// lockRecovery waits for others who stop recovery, let it go on or spend its budget. It locks a row
// that stands for the whole fleet, after a machine's (rule 1); what it protects is read by later
// statements.
func (t *transaction) lockRecovery(ctx context.Context) error {
	if err := t.q.LockLimit(ctx, statement.LockLimitParams{Process: string(fleet.ProcessRecovery)}); err != nil {
		return err
	}
	t.env = nil
	_, err := t.environment(ctx)
	return err
}

// spendBudget counts a restart of a machine that is about to be made, under the lock of recovery.
// KindThrottled when the budget is spent.
func (t *transaction) spendBudget(ctx context.Context, machine fleet.MachineID) error {
	until, err := t.budgetSpent(ctx, t.env.Policy)
	if err != nil {
		return err
	}
	if !until.IsZero() {
		// Not until then: the limit may be raised, and the stop of the line ended.
		return &fleet.Error{Kind: fleet.KindThrottled, Message: spent(t.env.Policy), RetryAfter: min(until.Sub(t.Now()), leastStop)}
	}
	if err := t.q.DeleteRecoveryRestartsBefore(ctx, micros(t.Now().Add(-budgetWindow))); err != nil {
		return err
	}
	return t.q.PutRecoveryRestart(ctx, statement.PutRecoveryRestartParams{Machine: string(machine), At: micros(t.Now())})
}

func spent(policy fleet.Policy) string {
	return fmt.Sprintf("recovery has restarted %d machines within an hour, which is what policy.recovery_per_hour allows", policy.RecoveryPerHour)
}

// WatchSilence stops recovery when so many machines are silent at once, or so many installed
// systems do not come up, that the fault is probably ours: the listener, the network, a
// certificate, the clock. It returns what it did in words; "" when it did nothing. Called by the
// janitor.
//
// It stops recovery once for each silence. When the time of the stop is over and the machines are
// silent still, recovery goes on. The silence is over when less than half as many machines are
// silent: otherwise a number about the limit would stop recovery again and again. Until then the
// stop stays in the database, in the name of the BMDB, as the memory of the silence.
//
// When a silence ends before its stop does, the machines that are silent still have the time of a
// step from then on. They may be on their way, behind the others: what has passed of their time,
// has passed while nobody could be heard.
//
// A stop that others have made, and that ends, it follows in time: machines that fell silent
// meanwhile may all be due for a step at that end. What they have asked for it does not cut short.
//
// It also stops recovery while the budget of recovery is spent. That stop is in the name of the
// policy, or of the BMDB where it takes the place of the memory of a silence.
func (db *DB) WatchSilence(ctx context.Context) (did string, err error) {
	err = db.update(ctx, "watch silence", func(ctx context.Context, t *transaction) error {
		did = ""
		if err := t.lockRecovery(ctx); err != nil {
			return err
		}
		policy, hold := t.env.Policy, t.env.RecoveryHold
		found, err := t.silence(ctx, *t.env)
		if err != nil {
			return err
		}
		if hold != nil && hold.Actor != actorBMDB && !holds(hold, t.Now()) {
			hold = nil // a person's or the policy's, which is over
		}
		from, guards := guardsFrom(hold, t.Now())
		switch {
		case found.many(policy) && guards:
			until := from.Add(policy.SuspectFor)
			did = found.String() + faultIsOurs
			return t.holdRecovery(ctx, actorBMDB, &until, did)
		case follows(hold, policy, t.Now()):
			return nil
		case found.few(policy) && found.any() && holds(hold, t.Now()) && SuspectsUs(hold):
			until := t.Now().Add(policy.RecoveryStepTimeout)
			did = found.String() + haveTime
			return t.holdRecovery(ctx, actorBMDB, &until, did)
		case found.any() && holds(hold, t.Now()) && givesTime(hold):
			return nil
		case found.few(policy) && hold != nil && hold.Actor == actorBMDB:
			did = found.String() + ": recovery goes on"
			if err := t.q.DeleteRecoveryHold(ctx); err != nil {
				return err
			}
			if !holds(hold, t.Now()) {
				return nil // it went on when the time was over
			}
			if err := t.recordOfLine(ctx, actorBMDB, fleet.EventResumed, "recovery: "+did); err != nil {
				return err
			}
			return t.renumber(ctx)
		case !holds(hold, t.Now()):
			until, err := t.budgetSpent(ctx, policy)
			if err != nil || until.IsZero() {
				return err
			}
			if least := t.Now().Add(leastStop); until.Before(least) {
				until = least
			}
			actor := fleet.ActorPolicy
			if hold != nil { // the silence that the line was stopped for is still remembered
				actor = actorBMDB
			}
			did = spent(policy)
			return t.holdRecovery(ctx, actor, &until, did)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return did, nil
}
