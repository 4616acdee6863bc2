package bmdb

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/verb"
)

// HoldRecovery stops recovery until then, or until ResumeRecovery: it reboots, power-cycles,
// reinstalls and quarantines no machine. Agents are started as before. KindConflict where it is
// stopped for longer: whoever stopped it counts on that. So it is where another person's stop lasts
// as long. One that lasts longer takes the place of that, without a moment between them, and its
// reason ends with that of the other.
func (db *DB) HoldRecovery(ctx context.Context, actor string, until *time.Time, reason string) error {
	return db.update(ctx, "hold recovery", func(ctx context.Context, t *transaction) error {
		if err := verb.CheckEnd("stop", until, t.Now()); err != nil {
			return err
		}
		if err := t.lockRecovery(ctx); err != nil {
			return err
		}
		stop := fleet.RecoveryHold{Until: until, Actor: actor, Cause: fleet.StopAsked, Reason: reason}
		if h := t.env.RecoveryHold; stopped(h, t.Now()) {
			switch {
			case verb.Shortens(h.Until, until):
				ends := "`ironherd recovery resume` ends that first"
				if err := t.refuseSpent(ctx, *t.env); fleet.KindOf(err) == fleet.KindConflict {
					ends = "that cannot be ended now: ask for a later end, or for none"
				} else if err != nil {
					return err
				}
				return fleet.Errorf(fleet.KindConflict, "recovery is stopped for longer by %s: %s; %s", stoppedBy(h), h.Reason, ends)
			case fleet.OfAnother(h.Actor, actor) && !verb.Shortens(until, h.Until):
				return fleet.Errorf(fleet.KindConflict, "recovery is stopped already by %s: %s; `ironherd recovery resume` ends that first", stoppedBy(h), h.Reason)
			}
			stop.Reason = withOthers(h, actor, reason)
		}
		// What is silent when that stop ends is a silence of its own.
		if err := t.q.DeleteKnownSilence(ctx); err != nil {
			return err
		}
		return t.stopRecovery(ctx, stop)
	})
}

// alsoStopped begins what the reason of a stop tells of another whose place it has taken.
const alsoStopped = "; also stopped by "

// withOthers returns the reason of the actor's stop, with those of all others in whose place it is:
// who ends it ends theirs, too.
func withOthers(h *fleet.RecoveryHold, actor, reason string) string {
	others := strings.Split(h.Reason, alsoStopped)
	if others[0] = stoppedBy(h) + ": " + others[0]; !fleet.OfAnother(h.Actor, actor) {
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
	if h == nil || !fleet.OfAnother(h.Actor, actor) {
		return ""
	}
	return stoppedBy(h) + ": " + h.Reason
}

// stoppedBy says who has made a stop, and until when.
func stoppedBy(h *fleet.RecoveryHold) string {
	if h.Until == nil {
		return fleet.ShownActor(h.Actor)
	}
	return fleet.ShownActor(h.Actor) + " until " + fleet.Instant(*h.Until)
}

func (t *transaction) stopRecovery(ctx context.Context, h fleet.RecoveryHold) error {
	err := t.q.PutRecoveryHold(ctx, statement.PutRecoveryHoldParams{
		At: micros(t.Now()), Until: microsPointer(h.Until), Actor: h.Actor, Reason: h.Reason, Cause: string(h.Cause),
	})
	if err != nil {
		return err
	}
	ends := "until somebody ends it"
	if h.Until != nil {
		ends = "until " + fleet.Instant(*h.Until)
	}
	if err := t.addEventAtProviders(ctx, h.Actor, fleet.EventPaused, fmt.Sprintf("recovery, %s: %s", ends, h.Reason)); err != nil {
		return err
	}
	// It may be shorter than the one before.
	return t.renumber(ctx)
}

// endStop lets recovery go on, which that actor has decided.
func (t *transaction) endStop(ctx context.Context, actor, detail string) error {
	if err := t.q.DeleteRecoveryHold(ctx); err != nil {
		return err
	}
	if err := t.addEventAtProviders(ctx, actor, fleet.EventResumed, detail); err != nil {
		return err
	}
	return t.renumber(ctx)
}

// addEventAtProviders appends to the history of each provider what concerns recovery everywhere.
func (t *transaction) addEventAtProviders(ctx context.Context, actor string, event fleet.Event, detail string) error {
	names, err := t.q.ListProviderNames(ctx)
	for _, name := range names {
		t.addEvent(fleet.Subject{Provider: fleet.ProviderName(name)}, actor, fleet.ProcessRecovery, event, detail)
	}
	return err
}

// ResumeRecovery ends the stop. Machines that are silent together at that time, so many that they
// stop recovery, do not stop it again until most of them have been heard, or machines that are left
// out of their number count again (WatchSilence). KindConflict when there is no stop, or when it is
// for the budget of recovery, which would stop it again at once.
func (db *DB) ResumeRecovery(ctx context.Context, actor, reason string) error {
	return db.update(ctx, "resume recovery", func(ctx context.Context, t *transaction) error {
		if err := t.lockRecovery(ctx); err != nil {
			return err
		}
		env := *t.env
		if !stopped(env.RecoveryHold, t.Now()) {
			return fleet.Errorf(fleet.KindConflict, "recovery is not stopped")
		}
		if err := t.refuseSpent(ctx, env); err != nil {
			return err
		}
		found, err := t.silence(ctx, env)
		if err != nil {
			return err
		}
		known, err := t.silenceIsKnown(ctx)
		if err != nil {
			return err
		}
		if err := t.knowSilence(ctx, found.many(env.Policy) || known && !found.few(env.Policy)); err != nil {
			return err
		}
		detail := "recovery"
		if reason != "" {
			detail += ": " + reason
		}
		return t.endStop(ctx, actor, detail)
	})
}

// stopped reports whether a stop is one at that time.
func stopped(h *fleet.RecoveryHold, at time.Time) bool {
	return h != nil && (h.Until == nil || h.Until.After(at))
}

// refuseSpent fails where recovery is stopped because its budget is spent.
func (t *transaction) refuseSpent(ctx context.Context, env fleet.Environment) error {
	if env.RecoveryHold.Cause != fleet.StopBudget {
		return nil
	}
	until, err := t.budgetSpent(ctx, env.Policy)
	if err != nil || until.IsZero() {
		return err
	}
	return fleet.Errorf(fleet.KindConflict, "%s: it goes on by itself, at %s at the earliest; with a higher limit, `ironherd recovery resume` ends the stop", spent(env.Policy), fleet.Instant(until))
}

// budgetWindow is the time in which the budget of recovery counts, and leastStop how long recovery
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
	_, err := t.reread(ctx)
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
		// Not until then: the limit may be raised, and the stop ended.
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
