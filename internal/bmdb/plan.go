package bmdb

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/verb"
)

// A plan is what operators want done to machines, as they were shown it before they said yes:
//
//	made ─► confirmed ─► each machine: done, skipped or refused
//	  └► expired
//
// It changes nothing until it is confirmed. Then one transaction for each machine finds out whether
// the plan is still true of it, does what was planned, and writes the plan's ID into its history.
// So whoever confirms it again, because the process died or the reply was lost, goes on where it
// stopped: a machine whose history names the plan is done. A machine of which the plan is not true
// any more is skipped.

const (
	// planLasts is how long a plan can be confirmed, and planContinues how long one that was confirmed
	// can be confirmed again, which goes on with it.
	planLasts     = 10 * time.Minute
	planContinues = time.Hour
	// MaxPlanned is how many machines one plan may have.
	MaxPlanned = 1000
	// planHistory is how many rows of a machine's history are searched for a plan. Where there are
	// more since it was confirmed, the machine has changed and is skipped.
	planHistory = 200
)

// PlanRequest is what a plan is made from.
type PlanRequest struct {
	Verb     fleet.Verb
	Machines []fleet.MachineID
	// Selector is what the machines were selected by, in a transaction before; a machine that does not
	// fit it any more is refused, or skipped when the plan is carried out. Its zero value fits all.
	Selector MachineFilter
	Reason   string
	// Until is when a maintenance ends by itself; nil: by a person's word.
	Until *time.Time
	// Install is what a reinstall installs; nil with any other verb.
	Install *fleet.InstallRequest
	// Refused says why nothing is to be done to some of the machines, by what the database does not
	// know, such as what is in their hardware reports. May be nil.
	Refused map[fleet.MachineID]error
}

// Plan is what is to be done to machines.
type Plan struct {
	verb.Request
	ID            string
	At, ExpiresAt time.Time
	Selector      MachineFilter
	Machines      []verb.Planned
	// NeedsConfirmation: it destroys or interrupts something, or is about several machines, so that a
	// person should look at it first.
	NeedsConfirmation bool
	// ConfirmedAt is nil while it is not.
	ConfirmedAt *time.Time
	// Confirmable: confirming it now begins to carry it out, or goes on where that was interrupted.
	Confirmable bool
	// Outcomes, in the order of the machines, are set by DB.ConfirmPlan only.
	Outcomes []PlanOutcome
}

// planBody is what the table keeps of a plan as JSON. One that a version without selectors
// has made fits any machine.
type planBody struct {
	Until    *time.Time            `json:"until,omitempty"`
	Install  *fleet.InstallRequest `json:"install,omitempty"`
	Selector MachineFilter         `json:"selector,omitzero"`
	Machines []verb.Planned        `json:"machines"`
}

// Outcome is what became of a machine of a plan that was confirmed.
type Outcome string

// The outcomes.
const (
	// OutcomeDone: what was planned is done, or durably asked for.
	OutcomeDone Outcome = "done"
	// OutcomeSkipped: the machine is not any more what the plan was made for, or does not fit its
	// selector. Nothing was done.
	OutcomeSkipped Outcome = "skipped"
	// OutcomeRefused: it cannot be done. Nothing was done.
	OutcomeRefused Outcome = "refused"
)

// PlanOutcome is what became of one machine.
type PlanOutcome struct {
	Machine fleet.MachineID
	Name    string
	Outcome Outcome
	// Detail says what was done, or why nothing was.
	Detail string
	// Operation and Generation are the numbers of what was asked for; 0: neither was.
	Operation  int64
	Generation fleet.InstallGeneration
}

// CreatePlan makes a plan and changes no machine: JudgePlan, then KeepPlan.
func (db *DB) CreatePlan(ctx context.Context, actor string, request PlanRequest) (Plan, error) {
	p, err := db.JudgePlan(ctx, actor, request)
	if err == nil {
		p, err = db.KeepPlan(ctx, p)
	}
	return p, err
}

// JudgePlan works out what a plan would do. It reads each of the machines whole, and writes
// nothing: the Plan has no ID. KindInvalid for a request that makes no sense, KindNotFound for a
// machine that is not there. Where nothing can be done to any of the machines, it returns the first
// refusal, and the Plan, that tells each of them.
func (db *DB) JudgePlan(ctx context.Context, actor string, request PlanRequest) (Plan, error) {
	p := Plan{
		Selector: request.Selector,
		Request:  verb.Request{Verb: request.Verb, Actor: actor, Reason: request.Reason, Until: request.Until, Install: request.Install},
	}
	switch n := len(request.Machines); {
	case n == 0:
		return Plan{}, fleet.Errorf(fleet.KindInvalid, "no machine was named")
	case n > MaxPlanned:
		return Plan{}, fleet.Errorf(fleet.KindInvalid, "%d machines are too many for one plan: at most %d are possible", n, MaxPlanned)
	}
	if err := p.Validate(); err != nil {
		return Plan{}, err
	}
	var refusal error
	able := 0
	err := db.view(ctx, "judge plan", func(ctx context.Context, t *transaction) error {
		if err := verb.CheckEnd("maintenance", p.Until, t.Now()); err != nil {
			return err
		}
		p.Machines, refusal, able = nil, nil, 0
		for _, id := range request.Machines {
			m, err := t.load(ctx, id)
			if err != nil {
				return err
			}
			planned, refused, err := t.planned(ctx, p, m)
			if err != nil {
				return err
			}
			if unfit := p.Selector.unfit(m.facts, planned.State); unfit != nil {
				refused, planned.Refused = unfit, unfit.Error()
			}
			if why := request.Refused[id]; why != nil {
				refused, planned.Refused = why, why.Error()
			}
			if refused == nil {
				able++
			} else if refusal == nil {
				refusal = refused
			}
			p.Machines = append(p.Machines, planned)
		}
		return nil
	})
	if err != nil {
		return Plan{}, err
	}
	if able == 0 {
		return p, refusal
	}
	return p, nil
}

// KeepPlan makes a plan of what JudgePlan returned, which can be confirmed from then on.
func (db *DB) KeepPlan(ctx context.Context, p Plan) (Plan, error) {
	body, err := json.Marshal(planBody{Until: p.Until, Install: p.Install, Selector: p.Selector, Machines: p.Machines})
	if err != nil {
		return Plan{}, err
	}
	p.ID = strings.ToLower(rand.Text()[:planIDLength])
	err = db.update(ctx, "create plan", func(ctx context.Context, t *transaction) error {
		p.At, p.ExpiresAt = t.Now(), t.Now().Add(planLasts)
		return t.q.InsertPlan(ctx, statement.InsertPlanParams{
			ID: p.ID, At: micros(p.At), ExpiresAt: micros(p.ExpiresAt), Actor: p.Actor, Verb: string(p.Verb), Reason: p.Reason, Machines: string(body),
		})
	})
	if err != nil {
		return Plan{}, err
	}
	p.NeedsConfirmation, p.Confirmable = verb.NeedConfirmation(p.Verb, p.Machines), true
	return p, nil
}

// planIDLength is that of a plan's ID: fifty random bits, that a person can type.
const planIDLength = 10

// Plan returns a plan, also one that has expired. KindNotFound.
func (db *DB) Plan(ctx context.Context, id string) (Plan, error) {
	return read(ctx, db.view, "plan", func(ctx context.Context, t *transaction) (Plan, error) { return t.readPlan(ctx, id) })
}

func (t *transaction) readPlan(ctx context.Context, id string) (Plan, error) {
	rows, err := t.q.GetPlan(ctx, strings.ToLower(strings.TrimSpace(id)))
	if err != nil {
		return Plan{}, err
	}
	if len(rows) == 0 {
		return Plan{}, fleet.Errorf(fleet.KindNotFound, "no plan is known as %q: plans are removed some time after they have expired (janitor.keep_plans)", id)
	}
	row := rows[0]
	var body planBody
	if err := readJSON(row.Machines, &body); err != nil {
		return Plan{}, fleet.Errorf(fleet.KindUnsupported, "plan %s cannot be read (a newer control plane may have made it): confirm it there, or make it anew: %w", row.ID, err)
	}
	p := Plan{
		Request: verb.Request{Verb: fleet.Verb(row.Verb), Actor: row.Actor, Reason: row.Reason, Until: body.Until, Install: body.Install},
		ID:      row.ID, At: instant(row.At), ExpiresAt: instant(row.ExpiresAt), Selector: body.Selector, Machines: body.Machines,
		ConfirmedAt: instantPointer(row.ConfirmedAt),
	}
	p.NeedsConfirmation = verb.NeedConfirmation(p.Verb, p.Machines)
	until := p.ExpiresAt
	if p.ConfirmedAt != nil {
		until = p.ConfirmedAt.Add(planContinues)
	}
	p.Confirmable = t.Now().Before(until)
	return p, nil
}

// ConfirmPlan has the plan carried out, machine by machine, in the name of the actor, and returns
// it with the outcomes. Confirming it again goes on where it stopped, and repeats nothing. When it
// fails, the outcomes so far are returned with the error.
//
// KindNotFound: there is no such plan. KindConflict: it has expired.
func (db *DB) ConfirmPlan(ctx context.Context, actor, id string) (Plan, error) {
	p, err := read(ctx, db.update, "confirm plan", func(ctx context.Context, t *transaction) (Plan, error) {
		p, err := t.readPlan(ctx, id)
		if err != nil {
			return p, err
		}
		switch now := t.Now(); {
		case p.ConfirmedAt == nil && !p.Confirmable:
			return p, fleet.Errorf(fleet.KindConflict, "plan %s expired at %s, %s after it was made: make it anew", p.ID,
				fleet.Instant(p.ExpiresAt), planLasts)
		case !p.Confirmable:
			return p, fleet.Errorf(fleet.KindConflict, "plan %s was confirmed at %s, and cannot be gone on with any more: make it anew", p.ID,
				fleet.Instant(*p.ConfirmedAt))
		case p.ConfirmedAt != nil:
			return p, nil
		default:
			p.ConfirmedAt = &now
			return p, t.q.ConfirmPlan(ctx, statement.ConfirmPlanParams{At: micros(now), ID: p.ID})
		}
	})
	if err != nil {
		return Plan{}, err
	}
	for i := range p.Machines {
		outcome, err := db.carryOut(ctx, actor, p, &p.Machines[i])
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = context.Cause(ctx) // which the caller may be told beside how far it is
		}
		if err != nil {
			return p, fmt.Errorf("plan %s was carried out for %d of %d machines; confirm it again to go on: %w", p.ID, i, len(p.Machines), err)
		}
		p.Outcomes = append(p.Outcomes, outcome)
	}
	return p, nil
}

// carryOut does what was planned to one machine, in one transaction. It locks what the verb
// changes: the machine, and its provider where it is forgotten.
func (db *DB) carryOut(ctx context.Context, actor string, p Plan, planned *verb.Planned) (PlanOutcome, error) {
	var outcome PlanOutcome
	told := func(o Outcome, detail string) { outcome.Outcome, outcome.Detail = o, detail }
	err := db.update(ctx, "carry out plan", func(ctx context.Context, t *transaction) error {
		outcome = PlanOutcome{Machine: planned.Machine, Name: planned.Name}
		l := locks{machines: []fleet.MachineID{planned.Machine}}
		if p.Verb == fleet.VerbForget {
			l.providers = []fleet.ProviderName{planned.Provider}
		}
		if err := l.take(ctx, t); err != nil {
			return err
		}
		m, err := t.load(ctx, planned.Machine)
		gone := fleet.KindOf(err) == fleet.KindNotFound
		if err != nil && !gone {
			return err
		}
		did, found, err := t.didUnder(ctx, p, planned.Machine)
		if err != nil {
			return err
		}
		switch {
		case found:
			told(OutcomeDone, did)
			if !gone {
				outcome.number(p, planned)
			}
			return nil
		case gone:
			told(OutcomeSkipped, "it is not there any more")
			return nil
		}
		now, refused, err := t.planned(ctx, p, m)
		if err != nil {
			return err
		}
		if changed := planned.Differs(now); changed != "" {
			told(OutcomeSkipped, changed)
			return nil
		}
		if refused != nil {
			told(OutcomeRefused, refused.Error())
			return nil
		}
		if planned.Refused != "" { // whoever confirmed it was shown that nothing is done
			told(OutcomeRefused, planned.Refused)
			return nil
		}
		if unfit := p.Selector.unfit(m.facts, now.State); unfit != nil {
			told(OutcomeSkipped, unfit.Error())
			return nil
		}
		return t.apply(ctx, actor, p, m, now.Does, &outcome)
	})
	return outcome, err
}

// number fills in the numbers of what was asked for under the plan before: those that follow what
// it was made for. The machine may have newer ones by now.
func (o *PlanOutcome) number(p Plan, planned *verb.Planned) {
	if _, is := p.Verb.Operation(); is {
		o.Operation = planned.Operation + 1
	}
	if p.Verb == fleet.VerbReinstall {
		o.Generation = max(planned.Requested, planned.Held) + 1
	}
}

// mark is how a plan is named in the histories of its machines.
func (p Plan) mark() string { return fmt.Sprintf(" (plan %s)", p.ID) }

// didUnder returns what the history says was done to the machine under the plan; false: nothing
// was.
func (t *transaction) didUnder(ctx context.Context, p Plan, machine fleet.MachineID) (did string, found bool, err error) {
	rows, err := t.q.ListHistory(ctx, newest(machineKey(machine), planHistory))
	for _, r := range rows {
		if r.StartedAt != 0 { // work that ended by it, or was found dead
			continue
		}
		if before, is := strings.CutSuffix(r.Detail, p.mark()); is {
			return fmt.Sprintf("%s: %s", r.Event, before), true, err
		}
	}
	return "", false, err
}
