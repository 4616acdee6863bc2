package bmdb

import (
	"cmp"
	"context"
	"fmt"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/verb"
)

// act does to a locked machine what a plan asks for, where package verb has just found it possible.
// It reports whether anything has changed by it. The outcome's detail is what the verb does, unless
// act says more.
type act func(ctx context.Context, t *transaction, m *machineRecord, p Plan, actor string, outcome *PlanOutcome) (changed bool, err error)

var acts = map[fleet.Verb]act{
	fleet.VerbReboot: operate, fleet.VerbPowerOn: operate, fleet.VerbPowerOff: operate, fleet.VerbPowerCycle: operate,
	fleet.VerbRelease: operate, fleet.VerbReplace: operate,
	fleet.VerbWithdraw: always("", (*transaction).callOff),
	fleet.VerbReinstall: func(ctx context.Context, t *transaction, m *machineRecord, p Plan, actor string, outcome *PlanOutcome) (changed bool, err error) {
		t.under = fmt.Sprintf("; %s%s", p.Reason, p.mark())
		outcome.Generation, changed, err = t.wantInstall(ctx, m, actor, *p.Install, true)
		outcome.Detail = fmt.Sprintf("install generation %d is wanted", outcome.Generation)
		return changed, err
	},
	fleet.VerbCancelInstall: func(ctx context.Context, t *transaction, m *machineRecord, p Plan, actor string, outcome *PlanOutcome) (bool, error) {
		told, _ := verb.Cancelled(m.facts)
		outcome.Detail = "the install is called off" + told
		return t.cancelInstall(ctx, m, actor, p.Reason)
	},
	fleet.VerbQuarantine: func(ctx context.Context, t *transaction, m *machineRecord, p Plan, actor string, outcome *PlanOutcome) (bool, error) {
		outcome.Detail = "it is in quarantine; " + outcome.Detail
		return true, t.quarantine(ctx, m, actor, p.Reason)
	},
	fleet.VerbUnquarantine: always("", (*transaction).unquarantine),
	fleet.VerbBeginMaintenance: func(ctx context.Context, t *transaction, m *machineRecord, p Plan, actor string, outcome *PlanOutcome) (bool, error) {
		outcome.Detail = "it is in maintenance; " + outcome.Detail
		return true, t.beginMaintenance(ctx, m, actor, p.Until, p.Reason)
	},
	fleet.VerbEndMaintenance: always("", (*transaction).endMaintenance),
	fleet.VerbMarkInstalled:  always("it is installed", (*transaction).markInstalled),
	fleet.VerbForget:         always("it is forgotten", (*transaction).forget),
}

// operate asks for what the provider is to do.
func operate(ctx context.Context, t *transaction, m *machineRecord, p Plan, actor string, outcome *PlanOutcome) (changed bool, err error) {
	o, _ := p.Verb.Operation()
	off := verb.CallsOff(p.Verb, m.facts)
	outcome.Operation, changed, err = t.wantOperation(ctx, m, actor, o, p.Reason)
	outcome.Detail = fmt.Sprintf("%s is asked for (operation %d)%s", o, outcome.Operation, off)
	if !changed {
		outcome.Detail = fmt.Sprintf("%s was asked for already (operation %d)", o, outcome.Operation)
	}
	return changed, err
}

// always does what changes something each time it is done. The outcome's detail is that one; "":
// what the verb does.
func always(detail string, do func(t *transaction, ctx context.Context, m *machineRecord, actor, reason string) error) act {
	return func(ctx context.Context, t *transaction, m *machineRecord, p Plan, actor string, outcome *PlanOutcome) (bool, error) {
		outcome.Detail = cmp.Or(detail, outcome.Detail)
		return true, do(t, ctx, m, actor, p.Reason)
	}
}

// planned is what the plan does to the machine as it is now, and why it cannot be done; nil: it
// can.
func (t *transaction) planned(ctx context.Context, p Plan, m *machineRecord) (planned verb.Planned, refused, err error) {
	judged, err := t.judge(ctx, m)
	if err != nil {
		return planned, nil, err
	}
	x := verb.Case{Request: p.Request, Record: m.facts, State: judged.State, Env: *t.env, Now: t.Now()}
	if verb.Of(p.Verb).Doer != "" || p.Verb == fleet.VerbForget && !m.facts.Gone() {
		parts, err := t.attendance(ctx)
		if err != nil {
			return planned, nil, err
		}
		x.Service = parts.service(m.facts.Provider)
	}
	planned, refused = verb.Judge(x)
	return planned, refused, nil
}

// apply does to a locked machine what planned has just found possible, and what it said happens.
func (t *transaction) apply(ctx context.Context, actor string, p Plan, m *machineRecord, does string, outcome *PlanOutcome) error {
	t.under = p.mark()
	outcome.Outcome, outcome.Detail = OutcomeDone, does
	changed, err := acts[p.Verb](ctx, t, m, p, actor, outcome)
	if err != nil || !changed || p.Verb == fleet.VerbForget {
		return err
	}
	return t.rewriteSubjects(ctx, []fleet.Subject{{Machine: m.facts.ID}})
}
