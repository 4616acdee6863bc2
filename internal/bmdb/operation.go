package bmdb

import (
	"context"
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/verb"
)

// What people ask to be done to a machine is a durable request with a number. The loop that carries
// operations out commits an attempt before it calls the provider (rule 7), then that the provider
// has accepted, and then, on evidence or when the time is over, how the operation ended.

// wantOperation asks for an operation and voids whatever is being done to the host (rule 8). It
// takes the place of an operation that has not ended. Asking for what is under way already returns
// its number, unless the policy alone asked for it, and the provider has not accepted it.
func (t *transaction) wantOperation(ctx context.Context, m *machineRecord, actor string, o fleet.Operation, reason string,
) (number int64, changed bool, err error) {
	if number, err := verb.Askable(m.facts, o); number != 0 || err != nil {
		return number, false, err
	}
	if open := m.facts.OpenOperation(); open != nil {
		t.addEvent(fleet.Subject{Machine: m.facts.ID}, actor, fleet.ProcessOperation, fleet.EventOperationWithdrawn,
			fmt.Sprintf("%s (operation %d): %s was asked for%s", open.Operation, open.Number, o, verb.UnlessCarriedOut(m.facts)))
	}
	number, err = t.requestOperation(ctx, m.facts, actor, o, reason)
	if err != nil {
		return 0, false, err
	}
	t.revoke(m, actor, fmt.Sprintf("%s was asked for", o))
	return number, true, nil
}

func (t *transaction) requestOperation(ctx context.Context, r fleet.Record, actor string, o fleet.Operation, reason string) (int64, error) {
	number := int64(1)
	if r.Operation != nil {
		number = r.Operation.Number + 1
	}
	request := statement.PutOperationRequestParams{
		Machine: string(r.ID), Number: number, Operation: string(o), At: micros(t.Now()), Actor: actor, Reason: reason,
	}
	if verb.CountsAsGivenUp(r) { // at its end, the provider says only that it deletes the machine
		request.GivenUp = 1
	}
	err := t.q.PutOperationRequest(ctx, request)
	if err != nil {
		return 0, err
	}
	t.buffer.resetBackoff(machineKey(r.ID), fleet.ProcessOperation)
	t.addEvent(fleet.Subject{Machine: r.ID}, actor, fleet.ProcessOperation, fleet.EventOperationRequested,
		fmt.Sprintf("%s (operation %d): %s", o, number, reason))
	return number, nil
}

// callOff ends an operation that the provider has not accepted. A power cycle that was begun may
// have switched the machine off already: then it is asked for that the machine is switched on.
func (t *transaction) callOff(ctx context.Context, m *machineRecord, actor, reason string) error {
	half := m.facts.HalfCycled()
	if err := t.withdrawOperation(ctx, m, actor, reason); err != nil || !half {
		return err
	}
	_, err := t.requestOperation(ctx, m.facts, actor, fleet.OperationPowerOn, "the power cycle that was called off may have switched it off: "+reason)
	return err
}

// withdrawOperation ends an operation that the provider has not accepted.
func (t *transaction) withdrawOperation(ctx context.Context, m *machineRecord, actor string, reason string) error {
	open := m.facts.OpenOperation()
	err := t.q.PutOperationReport(ctx, statement.PutOperationReportParams{
		Machine: string(m.facts.ID), Number: open.Number, At: micros(t.Now()), Detail: "withdrawn by " + actor + ": " + reason,
	})
	if err != nil {
		return err
	}
	t.revoke(m, actor, fmt.Sprintf("%s was withdrawn", open.Operation))
	t.addEvent(fleet.Subject{Machine: m.facts.ID}, actor, fleet.ProcessOperation, fleet.EventOperationWithdrawn,
		fmt.Sprintf("%s (operation %d): %s", open.Operation, open.Number, reason))
	return nil
}

// BeginOperation commits the next attempt at the operation of that number, to be followed by the
// call. KindConflict unless it is the newest and has not ended.
func BeginOperation(number int64, bootID string) Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
		open, err := c.operation(number)
		if err != nil {
			return err
		}
		attempt := 1
		if was := c.machine.facts.OperationAttempt; was != nil && was.Number == number {
			attempt = was.Attempt + 1
		}
		c.addHistory(t, c.work.Subject.Machine, fleet.EventOperationBegun, fmt.Sprintf("%s (operation %d), attempt %d", open.Operation, number, attempt))
		return t.q.PutOperationAttempt(ctx, statement.PutOperationAttemptParams{
			Machine: string(c.work.Subject.Machine), Number: number, Attempt: int64(attempt), At: micros(t.Now()), BootID: bootID,
		})
	}}
}

// UnlessRestored fails with KindConflict while the database looks restored or copied, and so does
// the commit of which it is part: what a call is to follow waits (rule 11).
func UnlessRestored(what fleet.Operation) Change {
	return Change{apply: func(ctx context.Context, t *transaction, _ *commit) error {
		env, err := t.environment(ctx)
		if err != nil || env.Restored == "" {
			return err
		}
		return fleet.Errorf(fleet.KindConflict, "the database looks restored or copied (%s): %s waits for `ironherd db accept-restore`",
			env.Restored, what)
	}}
}

// UndoAttempt takes back the newest attempt at the operation of that number, which certainly had
// no effect: nothing was sent, or the provider has refused it. was is the attempt before it, which
// may be of an operation that was asked for before; nil: there was none. KindConflict when the
// provider has accepted it.
func UndoAttempt(number int64, was *fleet.OperationAttempt) Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
		if _, err := c.operation(number); err != nil {
			return err
		}
		machine := string(c.work.Subject.Machine)
		if is := c.machine.facts.OperationAttempt; is != nil && is.Number == number && is.AcceptedAt != nil {
			return fleet.Errorf(fleet.KindConflict, "the attempt at operation %d of machine %s was accepted", number, machine)
		}
		if was == nil {
			return t.q.DropOperationAttempt(ctx, machine)
		}
		err := t.q.PutOperationAttempt(ctx, statement.PutOperationAttemptParams{
			Machine: machine, Number: was.Number, Attempt: int64(was.Attempt), At: micros(was.At), BootID: was.BootID,
		})
		if err != nil || was.AcceptedAt == nil {
			return err
		}
		return t.q.AcceptOperation(ctx, statement.AcceptOperationParams{At: micros(*was.AcceptedAt), Machine: machine, Number: was.Number})
	}}
}

// operation returns the operation that has not ended. KindConflict unless it is of that number.
func (c *commit) operation(number int64) (*fleet.OperationRequest, error) {
	open := c.machine.facts.OpenOperation()
	if open == nil || open.Number != number {
		return nil, fleet.Errorf(fleet.KindConflict, "operation %d of machine %s is not the one that is wanted", number, c.work.Subject.Machine)
	}
	return open, nil
}

// AcceptOperation records that the provider has accepted the call.
func AcceptOperation(number int64) Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
		open, err := c.operation(number)
		if err != nil {
			return err
		}
		machine := c.work.Subject.Machine
		c.addHistory(t, machine, fleet.EventOperationAccepted, fmt.Sprintf("%s (operation %d)", open.Operation, number))
		if open.Operation.Restarts() {
			t.startsAnew(machine)
		}
		return t.q.AcceptOperation(ctx, statement.AcceptOperationParams{At: micros(t.Now()), Machine: string(machine), Number: number})
	}}
}

// CheckOperation records that the provider was asked what has become of it.
func CheckOperation(number int64) Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
		return t.q.CheckOperation(ctx, statement.CheckOperationParams{
			At: micros(t.Now()), Machine: string(c.work.Subject.Machine), Number: number,
		})
	}}
}

// EndOperation records how the operation ended. A machine that was given back goes, with all that
// is known of it but its history. The capacity of one that was given up when it was to be replaced
// is not used again for as long as penalty says; after a release it is not used until an operator
// allows it (DB.RetryCapacity).
func EndOperation(number int64, ok bool, detail string, penalty time.Duration) Change {
	return Change{
		concerns: func(_ context.Context, _ *transaction, w *Work, l *locks) error {
			l.providers = append(l.providers, w.Record.Provider)
			return nil
		},
		apply: func(ctx context.Context, t *transaction, c *commit) error {
			open, err := c.operation(number)
			if err != nil {
				return err
			}
			machine, event := c.work.Subject.Machine, fleet.EventOperationFailed
			report := statement.PutOperationReportParams{Machine: string(machine), Number: number, At: micros(t.Now()), Detail: detail}
			if ok {
				event, report.Ok = fleet.EventOperationDone, 1
			}
			c.addHistory(t, machine, event, fmt.Sprintf("%s (operation %d): %s", open.Operation, number, detail))
			if err := t.q.PutOperationReport(ctx, report); err != nil {
				return err
			}
			if !ok || !open.Operation.GivesBack() {
				return nil
			}
			c.gone = true
			return t.keepOut(ctx, c.machine.facts, *open, penalty)
		},
	}
}

// forEver is when the penalty of capacity ends that an operator has taken out of use.
var forEver = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// keepOut keeps the capacity of a machine that was given back from being used at once.
func (t *transaction) keepOut(ctx context.Context, r fleet.Record, q fleet.OperationRequest, penalty time.Duration) error {
	if r.Provided == nil || r.Provided.Capacity == "" {
		return nil
	}
	until := forEver
	if q.Operation == fleet.OperationReplace {
		wasGivenUp, err := t.q.WasGivenUp(ctx, string(r.ID))
		if err != nil {
			return err
		}
		// The policy replaces no others, and an older version may have written the request.
		if wasGivenUp == 0 && q.Actor != fleet.ActorPolicy && !lifecycle.GivenUp(r) {
			return nil
		}
		until = t.Now().Add(penalty)
	}
	if !until.After(t.Now()) {
		return nil
	}
	address := ""
	if lifecycle.Listed(r) && r.Provided.Address.IsValid() { // it stays there, whatever its ID is
		address = r.Provided.Address.String()
	}
	_, err := t.q.PutPenalty(ctx, statement.PutPenaltyParams{
		Provider: string(r.Provider), Capacity: string(r.Provided.Capacity), Until: micros(until), Address: address,
		Cause: fmt.Sprintf("%s, asked for by %s: %s", q.Operation, q.Actor, q.Reason),
	})
	return err
}

// ReplaceByPolicy asks, in the policy's name, for a machine that its provider gave up to be
// replaced. KindConflict unless the newest policy has it replaced now.
func ReplaceByPolicy() Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
		r := c.machine.facts
		if err := verb.Operable(r, fleet.OperationReplace); err != nil {
			return err
		}
		env, err := t.environment(ctx)
		if err != nil {
			return err
		}
		wanted, notYet := lifecycle.Replaces(r, env, t.Now())
		switch {
		case r.OpenOperation() != nil:
			return fleet.Errorf(fleet.KindConflict, "an operation of machine %s is under way", r.Name())
		case !wanted:
			return fleet.Errorf(fleet.KindConflict, "the policy does not have machine %s replaced", r.Name())
		case notYet != "":
			return fleet.Errorf(fleet.KindConflict, "the policy does not have machine %s replaced now: %s", r.Name(), notYet)
		}
		_, err = t.requestOperation(ctx, r, fleet.ActorPolicy, fleet.OperationReplace, "the provider gave the machine up")
		return err
	}}
}

// CountGivenUp counts the machines of a provider that it has given up, and all that it is known to
// have, by their states. Those in quarantine, and those that are given back, may be given up too,
// and count as that.
func (db *DB) CountGivenUp(ctx context.Context, name fleet.ProviderName) (givenUp, all int, err error) {
	err = db.view(ctx, "count given up", func(ctx context.Context, t *transaction) error {
		givenUp, all = 0, 0
		rows, err := t.q.CountStates(ctx)
		for _, row := range rows {
			switch state := fleet.State(row.State); {
			case row.Provider != string(name) || state == fleet.StateCreating || state == fleet.StateMissing:
			case state == fleet.StateFailed, state == fleet.StateQuarantined, state == fleet.StateReleasing:
				givenUp, all = givenUp+int(row.N), all+int(row.N)
			default:
				all += int(row.N)
			}
		}
		return err
	})
	return givenUp, all, err
}
