package bmdb

import (
	"context"
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
// whole database, in small transactions. Findings about machines that are being written meanwhile
// are confirmed with their rows locked.
func (db *DB) Check(ctx context.Context) (findings []Finding, err error) {
	for after, complete := fleet.MachineID(""), false; !complete; {
		var found []Finding
		if found, after, err = db.checkPage(ctx, after, checkBatch); err != nil {
			return nil, err
		}
		findings, complete = append(findings, found...), after == ""
	}
	return findings, nil
}

// CheckNext is Check for the next machines, at most limit of them, from where the last call
// stopped; complete says that it came to the end of the fleet, and the next call begins anew. A
// fleet is thus checked over time, at a cost that does not grow with it.
func (db *DB) CheckNext(ctx context.Context, limit int) (findings []Finding, complete bool, err error) {
	findings, after, err := db.checkPage(ctx, db.janitor.checkAfter(), limit)
	if err != nil {
		return nil, false, err
	}
	db.janitor.checked(after)
	return findings, after == "", nil
}

// checkPage checks the machines behind one, and after the last of them what is not about machines.
// It returns where to go on; "" at the end.
func (db *DB) checkPage(ctx context.Context, after fleet.MachineID, limit int) (findings []Finding, next fleet.MachineID, err error) {
	var ids []string
	var subjects []string
	err = db.view(ctx, "check", func(ctx context.Context, t *transaction) (err error) {
		findings = nil
		if ids, err = t.q.ListMachineIDsAfter(ctx, statement.ListMachineIDsAfterParams{After: string(after), MaxRows: int64(limit)}); err != nil {
			return err
		}
		if subjects = ids; len(ids) < limit {
			providers, err := t.q.ListProviders(ctx)
			if err != nil {
				return err
			}
			for _, p := range providers {
				subjects = append(subjects, providerSubject(fleet.ProviderName(p.Name)))
			}
			if findings, err = t.checkRows(ctx); err != nil {
				return err
			}
		}
		edges, err := t.checkEdges(ctx, subjects)
		findings = append(findings, edges...)
		return err
	})
	if err != nil {
		return nil, "", fmt.Errorf("check: %w", err)
	}
	for _, id := range ids {
		found, err := db.checkMachine(ctx, fleet.MachineID(id))
		if err != nil {
			return nil, "", fmt.Errorf("check machine %s: %w", id, err)
		}
		findings, next = append(findings, found...), fleet.MachineID(id)
	}
	if len(ids) < limit {
		next = ""
	}
	return findings, next, nil
}

// checkEdges looks for work of these subjects that has not one start and, unless it runs, one end
// (I4).
func (t *transaction) checkEdges(ctx context.Context, subjects []string) ([]Finding, error) {
	edges, err := t.q.CheckEdges(ctx, statement.Keys(subjects))
	if err != nil {
		return nil, err
	}
	var findings []Finding
	for _, e := range edges {
		findings = append(findings, Finding{
			"I4", e.Subject, fmt.Sprintf("the work of %s lane epoch %d has %d starts and %d ends", e.Lane, e.Epoch, e.Starts, e.Ends),
		})
	}
	return findings, nil
}

func (t *transaction) checkRows(ctx context.Context) ([]Finding, error) {
	var findings []Finding
	lanes, err := t.q.ListLanesWithoutSession(ctx, maxFindings)
	if err != nil {
		return nil, err
	}
	for _, l := range lanes {
		findings = append(findings, Finding{"I1", l.Subject, fmt.Sprintf("the %s lane is held by session %s, which there is not", l.Lane, l.Session)})
	}
	providers, err := t.q.ListProviders(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range providers {
		n, err := t.q.CountProviderMachines(ctx, p.Name)
		if err != nil {
			return nil, err
		}
		if n != p.Machines {
			findings = append(findings, Finding{"count", providerSubject(fleet.ProviderName(p.Name)), fmt.Sprintf("%d machines counted, %d there", p.Machines, n)})
		}
	}
	counts, err := t.checkCounts(ctx)
	if err != nil {
		return nil, err
	}
	slots, err := t.checkSlots(ctx)
	return slices.Concat(findings, counts, slots), err
}

// checkMachine compares the agenda with what lifecycle says (I2). A row that is too early is not a
// fault.
func (db *DB) checkMachine(ctx context.Context, id fleet.MachineID) (findings []Finding, err error) {
	err = db.update(ctx, "check machine", func(ctx context.Context, t *transaction) error {
		findings = nil
		l := locks{machines: []fleet.MachineID{id}}
		if err := l.take(ctx, t); err != nil {
			return err
		}
		j, err := t.load(ctx, id)
		if fleet.KindOf(err) == fleet.KindNotFound {
			return nil
		}
		if err != nil {
			return err
		}
		plan, err := t.plan(ctx, j)
		if err != nil {
			return err
		}
		if j.row.StatePolicy < t.env.Policy.Number {
			return nil // the janitor will come to it
		}
		for _, process := range fleet.MachineProcesses() {
			d := plan.For(process)
			at, there := j.agenda[process]
			switch {
			case d.Verdict.Scheduled() && !there:
				findings = append(findings, Finding{"agenda", string(id), fmt.Sprintf("%s is %s and has no row", process, d.Verdict)})
			case j.heldByTheDead() && there && at.UnixMicro() <= max(micros(t.Now()), j.row.SessionDeadlineAt):
				// It surfaces at the deadline of the dead, if its lane is not freed before, which follows the
				// end of the session.
			case d.Verdict.Scheduled() && at.After(d.DueAt):
				findings = append(findings, Finding{"agenda", string(id), fmt.Sprintf("%s is due at %s, its row says %s", process, d.DueAt, at)})
			case !d.Verdict.Scheduled() && there && d.Verdict == lifecycle.NotWanted:
				findings = append(findings, Finding{"agenda", string(id), fmt.Sprintf("%s is not wanted and has a row", process)})
			}
		}
		return nil
	})
	return findings, err
}
