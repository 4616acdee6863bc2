package bmdb

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// Finding is something in the database that must not be.
type Finding struct {
	// Invariant it breaks, such as "I4", or "agenda".
	Invariant string
	Subject   string
	Detail    string
}

// checkBatch is how many rows of each kind a check reads at a time; maxFindings how many findings
// of a kind it returns.
const (
	checkBatch  = 500
	maxFindings = 100
)

// Check looks for what can be seen from rows alone: lanes and history that contradict each other,
// counters that are wrong, and agenda rows that are missing, too late or superfluous. It reads the
// whole database, in small transactions; what it counts, at the end, in one. Each machine and
// provider is judged with its row locked. It passes those that somebody else has locked, which are
// in the error, beside what was found. Any other failure ends it, and so do many of these.
func (db *DB) Check(ctx context.Context) (findings []Finding, err error) {
	var passed []error
	for after := fleet.MachineID(""); len(passed) < maxFindings; {
		var found []Finding
		found, after, err = db.CheckAfter(ctx, after, checkBatch)
		findings = append(findings, found...)
		if _, is := errors.AsType[errPassed](err); is {
			passed = append(passed, err)
		} else if err != nil {
			return findings, errors.Join(append([]error{err}, passed...)...)
		}
		if after == "" {
			break
		}
	}
	return findings, errors.Join(passed...)
}

// errPassed is why something was not checked, although everything else was.
type errPassed struct{ error }

// Unwrap returns the failure.
func (e errPassed) Unwrap() error { return e.error }

// CheckAfter is Check for the machines behind one, at most limit of them, and after the last of all
// for what is not about machines. It returns where to go on; "" at the end. So a fleet can be
// checked over time. Only the last part of a round costs more the larger the fleet is: it counts.
//
// A machine that somebody else has locked ends the part: the error names it, and the check goes on
// behind it. After any other failure it goes on where this part began.
func (db *DB) CheckAfter(ctx context.Context, after fleet.MachineID, limit int) (findings []Finding, next fleet.MachineID, err error) {
	ids, err := read(ctx, db.view, "check", func(ctx context.Context, t *transaction) ([]string, error) {
		return t.q.ListMachineIDsAfter(ctx, statement.ListMachineIDsAfterParams{After: string(after), MaxRows: int64(limit)})
	})
	if err != nil {
		return nil, after, err
	}
	last := len(ids) < limit
	var passed error
	for i, id := range ids {
		found, err := db.checkMachine(ctx, fleet.MachineID(id))
		if err != nil {
			err = fmt.Errorf("check machine %s: %w", id, err)
			if !lockedByOthers(err) {
				return nil, after, err
			}
			passed, ids, last = errPassed{err}, ids[:i+1], false
		}
		findings, next = append(findings, found...), fleet.MachineID(id)
		if passed != nil {
			break
		}
	}
	ended, err := read(ctx, db.view, "check", func(ctx context.Context, t *transaction) ([]Finding, error) {
		return t.checkEnds(ctx, ids)
	})
	if err != nil {
		return nil, after, err
	}
	if findings = append(findings, ended...); !last {
		return findings, next, passed
	}
	rest, err := db.checkRest(ctx)
	if _, is := errors.AsType[errPassed](err); err != nil && !is {
		return nil, after, err
	}
	return append(findings, rest...), "", err
}

// checkRest checks what is not about one machine.
func (db *DB) checkRest(ctx context.Context) (findings []Finding, err error) {
	var names []string
	err = db.view(ctx, "check", func(ctx context.Context, t *transaction) error {
		providers, err := t.q.ListProviders(ctx)
		if err != nil {
			return err
		}
		if findings, err = t.checkRows(ctx, providers); err != nil {
			return err
		}
		names = nil
		var subjects []string
		for _, p := range providers {
			names, subjects = append(names, p.Name), append(subjects, providerKey(fleet.ProviderName(p.Name)))
		}
		ended, err := t.checkEnds(ctx, subjects)
		findings = append(findings, ended...)
		return err
	})
	if err != nil {
		return nil, err
	}
	_, err = eachFree(names, "check provider", func(name string) error {
		found, err := db.checkProvider(ctx, fleet.ProviderName(name))
		findings = append(findings, found...)
		return err
	})
	if lockedByOthers(err) {
		err = errPassed{err}
	}
	return findings, err
}

// checkEnds looks for work of these subjects that ended more than once, or without a start (I4).
func (t *transaction) checkEnds(ctx context.Context, subjects []string) ([]Finding, error) {
	var findings []Finding
	for _, subject := range subjects {
		wrong, err := t.q.ListWrongEnds(ctx, subject)
		if err != nil {
			return nil, err
		}
		for _, e := range wrong {
			if e.Ends > 1 {
				findings = append(findings, Finding{"I4", subject, fmt.Sprintf("%s epoch %d has %d ends", e.Process, e.Epoch, e.Ends)})
			}
			if e.StartedAt == 0 {
				findings = append(findings, Finding{"I4", subject, fmt.Sprintf("%s epoch %d has an end and no start", e.Process, e.Epoch)})
			}
		}
	}
	return findings, nil
}

// checkRows looks for lanes that contradict themselves, and for counts that are wrong.
func (t *transaction) checkRows(ctx context.Context, providers []statement.Provider) ([]Finding, error) {
	var findings []Finding
	lanes, err := t.q.ListWrongLanes(ctx, statement.ListWrongLanesParams{Limited: string(fleet.ProcessRecovery), MaxRows: maxFindings})
	if err != nil {
		return nil, err
	}
	for _, l := range lanes {
		findings = append(findings, Finding{"I1", l.ID, fmt.Sprintf("the lane, held by session %q, contradicts itself or the sessions", l.Session)})
	}
	for _, p := range providers {
		n, err := t.q.CountProviderMachines(ctx, p.Name)
		if err != nil {
			return nil, err
		}
		if n != p.Machines {
			findings = append(findings, Finding{"count", providerKey(fleet.ProviderName(p.Name)), fmt.Sprintf("%d machines counted, %d there", p.Machines, n)})
		}
	}
	counts, err := t.checkCounts(ctx)
	return slices.Concat(findings, counts), err
}

// checkMachine compares the agenda with what lifecycle says (I2). An entry that is too early is not
// a fault.
func (db *DB) checkMachine(ctx context.Context, id fleet.MachineID) (findings []Finding, err error) {
	err = db.onMachine(ctx, "check machine", id, func(ctx context.Context, t *transaction, m *machineRecord) (changed bool, err error) {
		findings = nil
		if m.facts.Unreadable != "" {
			findings = append(findings, Finding{"unreadable", string(id), m.facts.Unreadable})
		}
		plan, err := t.judge(ctx, m)
		if err != nil {
			return false, err
		}
		// If not, the janitor will come to it, or a newer release has.
		current := m.state.basis == basisNow(t.env.Policy)
		for _, process := range fleet.MachineProcesses() {
			found, err := t.checkEntry(ctx, machineKey(id), &m.lane, process, m.due[process])
			if err != nil {
				return false, err
			}
			if findings = append(findings, found...); current {
				findings = append(findings, t.compareEntry(machineKey(id), &m.lane, plan.For(process), m.due[process])...)
			}
		}
		return false, nil
	})
	if fleet.KindOf(err) == fleet.KindNotFound {
		return nil, nil
	}
	return findings, err
}

// checkProvider is checkMachine for a provider. That its work has an entry depends on no policy,
// only when it is due does: whoever has just opened the database sees what is never done.
func (db *DB) checkProvider(ctx context.Context, name fleet.ProviderName) ([]Finding, error) {
	return read(ctx, db.update, "check provider", func(ctx context.Context, t *transaction) (findings []Finding, err error) {
		p, err := t.lockProvider(ctx, name)
		if fleet.KindOf(err) == fleet.KindNotFound { // it was forgotten meanwhile
			return findings, nil
		}
		if err != nil {
			return findings, err
		}
		plan, err := t.judgeProvider(ctx, p)
		if err != nil {
			return findings, err
		}
		current := db.judged.Load() >= t.env.Policy.Number // if not, the janitor may have to come to it
		for process, l := range p.lanes {
			found, err := t.checkEntry(ctx, providerKey(name), &l.lane, process, l.due)
			if err != nil {
				return findings, err
			}
			if findings = append(findings, found...); current || l.due == 0 {
				findings = append(findings, t.compareEntry(providerKey(name), &l.lane, plan[process], l.due)...)
			}
		}
		return findings, nil
	})
}

// checkEntry looks whether the entry that the subject's row says there is is in the agenda, and
// whether what holds the lane has started. The subject's row is locked.
func (t *transaction) checkEntry(ctx context.Context, subject string, l *lane, process fleet.Process, due int64) (findings []Finding, err error) {
	if l.session != "" && l.since == 0 {
		findings = append(findings, Finding{"I4", subject, fmt.Sprintf("%s epoch %d is held and has not started", l.process, l.epoch)})
	}
	if due == 0 {
		return findings, nil
	}
	entries, err := t.q.CountAgenda(ctx, statement.CountAgendaParams{Process: string(process), DueAt: due, Subject: subject})
	if err == nil && entries == 0 {
		findings = append(findings, Finding{"agenda", subject, fmt.Sprintf("%s is due at %s and has no entry", process, instant(due))})
	}
	return findings, err
}

// compareEntry compares the entry that the subject's row says there is with a decision.
func (t *transaction) compareEntry(subject string, l *lane, d lifecycle.Decision, due int64) []Finding {
	found := func(format string, args ...any) []Finding {
		return []Finding{{"agenda", subject, fmt.Sprintf(format, args...)}}
	}
	switch {
	case d.Verdict.Scheduled() && due == 0:
		return found("%s is %s and has no entry", d.Process, d.Verdict)
	case l.dead() && due != 0 && due <= max(micros(t.Now()), l.holder.deadlineAt):
		// It surfaces at the deadline of the dead, if its lane is not freed before, which follows the end
		// of the session.
	case d.Verdict.Scheduled() && due > dueMicros(d):
		return found("%s is due at %s, its entry says %s", d.Process, d.DueAt, instant(due))
	case !d.Verdict.Scheduled() && due != 0 && d.Verdict == lifecycle.NotWanted:
		return found("%s is not wanted and has an entry", d.Process)
	}
	return nil
}
