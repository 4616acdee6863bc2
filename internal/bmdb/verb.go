package bmdb

import (
	"cmp"
	"context"
	"fmt"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// verb is what a verb does to one machine of a plan.
type verb struct {
	// doer is the role whose loop does the rest; "" where nothing is left to do.
	doer fleet.Role
	// possible says why it cannot be done; nil: it can. Who may forget a machine is known to planned.
	possible func(x target) error
	// does says what happens to the machine, and what it takes the place of.
	does func(x target) string
	// destroys says what is lost by it; "" where nothing is. It is nil where nothing ever is.
	destroys func(r fleet.Record) string
	// apply does what is possible, and reports whether anything has changed by it. The outcome's
	// detail is what does has said, unless apply says more.
	apply func(ctx context.Context, x target, actor string, outcome *PlanOutcome) (changed bool, err error)
}

// target is a machine of a plan in a transaction. State and goesOn, what goes on although work is
// kept away from it, are there before it is applied.
type target struct {
	t      *transaction
	plan   Plan
	m      *machineRecord
	r      fleet.Record
	state  fleet.State
	goesOn string
}

var verbs = map[fleet.Verb]verb{
	fleet.VerbReboot:     operation(fleet.OperationReboot, "%s reboots it", nothing, interrupted),
	fleet.VerbPowerOn:    operation(fleet.OperationPowerOn, "%s switches it on", wasOff, nothing),
	fleet.VerbPowerOff:   operation(fleet.OperationPowerOff, "%s switches it off", nothing, interrupted),
	fleet.VerbPowerCycle: operation(fleet.OperationPowerCycle, "%s switches it off and on", nothing, interrupted),
	fleet.VerbRelease:    operation(fleet.OperationRelease, "it is given back to %s", afterRelease, lost),
	fleet.VerbReplace:    operation(fleet.OperationReplace, "it is given back to %s", afterReplacement, lost),
	fleet.VerbWithdraw: {
		possible: func(x target) error { return withdrawable(x.r) },
		does: func(x target) string {
			if open := x.r.OpenOperation(); open != nil {
				return fmt.Sprintf("the %s that %s asked for is called off%s", open.Operation, open.Actor, afterCallOff(x.r))
			}
			return "the operation that was asked for is called off"
		},
		apply: always("", (*transaction).callOff),
	},
	fleet.VerbReinstall: {
		doer:     fleet.RoleInitializer, // it begins with an agent, here and below
		possible: func(x target) error { return kept(x.r) },
		does: func(x target) string {
			does := x.plan.Install.Image.Label() + " is installed"
			if eraseToo(x.r) != "" && !x.plan.Install.RootDisk.Erase {
				does = "what runs on it ends, and " + does + ", unless its disk holds what no install of Ironherd has put there: that needs --erase"
			}
			return does + map[fleet.State]string{
				fleet.StateQuarantined: " when its quarantine ends", fleet.StateMaintenance: " when its maintenance ends",
			}[x.state]
		},
		destroys: func(fleet.Record) string { return "what is on the disk" },
		apply: func(ctx context.Context, x target, actor string, outcome *PlanOutcome) (changed bool, err error) {
			x.t.under = fmt.Sprintf("; %s%s", x.plan.Reason, x.plan.mark())
			outcome.Generation, changed, err = x.t.wantInstall(ctx, x.m, actor, *x.plan.Install, true)
			outcome.Detail = fmt.Sprintf("install generation %d is wanted", outcome.Generation)
			return changed, err
		},
	},
	fleet.VerbCancelInstall: {
		possible: func(x target) error { return cancellable(x.r) },
		does:     func(x target) string { return "the install is called off" + startGoesOn(x.r) },
		destroys: func(r fleet.Record) string {
			_, disk := cancelled(r)
			return disk
		},
		apply: func(ctx context.Context, x target, actor string, outcome *PlanOutcome) (bool, error) {
			told, _ := cancelled(x.r)
			outcome.Detail = "the install is called off" + told
			return x.t.cancelInstall(ctx, x.m, actor, x.plan.Reason)
		},
	},
	fleet.VerbQuarantine: {
		possible: func(x target) error { return quarantinable(x.r, x.plan.Actor) },
		does: func(x target) string {
			does := "all work is kept away from it"
			if open := x.r.OpenOperation(); open != nil && withdrawable(x.r) == nil {
				does += fmt.Sprintf(", and the %s that %s asked for is called off%s", open.Operation, open.Actor, mayStayOff(x.r))
			}
			if q := x.r.Quarantine; q != nil {
				return does + x.goesOn + x.replaced("quarantine", q.Actor, q.Reason)
			}
			return does + x.goesOn
		},
		apply: func(ctx context.Context, x target, actor string, outcome *PlanOutcome) (bool, error) {
			outcome.Detail = "it is in quarantine; " + outcome.Detail
			return true, x.t.quarantine(ctx, x.m, actor, x.plan.Reason)
		},
	},
	fleet.VerbUnquarantine: {
		doer:     fleet.RoleInitializer,
		possible: func(x target) error { return quarantined(x.r) },
		does: func(x target) string {
			if q := x.r.Quarantine; q != nil {
				return fmt.Sprintf("the quarantine by %s ends (%s), and work comes back to it", fleet.ShownActor(q.Actor), q.Reason)
			}
			return "work comes back to it"
		},
		apply: always("", (*transaction).unquarantine),
	},
	fleet.VerbBeginMaintenance: {
		possible: func(x target) error {
			return cmp.Or(maintainable(x.r, x.plan.Actor, x.plan.Until, x.t.Now()), x.t.checkEnd("maintenance", x.plan.Until))
		},
		does: func(x target) string {
			until := fmt.Sprintf("`ironherd machine maintenance end %s --reason WHY`", x.r.ID)
			if x.plan.Until != nil {
				until = fleet.Instant(*x.plan.Until)
			}
			does := "nothing touches its host until " + until + x.goesOn
			if m := x.r.Maintenance; m != nil && !m.Over {
				return does + x.replaced("maintenance", m.Actor, m.Reason)
			}
			return does
		},
		apply: func(ctx context.Context, x target, actor string, outcome *PlanOutcome) (bool, error) {
			outcome.Detail = "it is in maintenance; " + outcome.Detail
			return true, x.t.beginMaintenance(ctx, x.m, actor, x.plan.Until, x.plan.Reason)
		},
	},
	fleet.VerbEndMaintenance: {
		doer:     fleet.RoleInitializer,
		possible: func(x target) error { return maintained(x.r) },
		does: func(x target) string {
			if m := x.r.Maintenance; maintained(x.r) == nil {
				return fmt.Sprintf("the maintenance by %s ends (%s), and its host is looked after again", fleet.ShownActor(m.Actor), m.Reason)
			}
			return "its host is looked after again"
		},
		apply: always("", (*transaction).endMaintenance),
	},
	fleet.VerbMarkInstalled: {
		possible: func(x target) error { return cmp.Or(kept(x.r), x.t.markable(x.r)) },
		does: func(x target) string {
			return "an operating system runs there, and is left alone" + answersRequest(x.r)
		},
		apply: always("it is installed", (*transaction).markInstalled),
	},
	fleet.VerbForget: {
		does: func(x target) string {
			does := "what is known of it is removed here, but for its history"
			if open := x.r.OpenOperation(); open != nil && open.Operation == fleet.OperationRelease {
				does += afterRelease(x.r)
			}
			return does
		},
		destroys: func(r fleet.Record) string {
			if inUse(r) != "" && lifecycle.Listed(r) {
				return "our hold on it: if a list has its host, under whatever id, the host is taken in anew, and what runs on it ends"
			}
			return ""
		},
		apply: always("it is forgotten", (*transaction).forget),
	},
}

// verbOf is what the verb does. One of a newer version, which may have made the plan, is possible
// nowhere.
func verbOf(v fleet.Verb) verb {
	if known, is := verbs[v]; is {
		return known
	}
	return verb{
		possible: func(target) error { return fleet.Errorf(fleet.KindInvalid, "no verb is named %q", v) },
		does:     func(target) string { return "" },
	}
}

// operation is a verb that the provider carries out, whose name does takes. After says more.
func operation(o fleet.Operation, does string, after, destroys func(r fleet.Record) string) verb {
	return verb{
		doer: fleet.RoleOperations,
		possible: func(x target) error {
			_, err := askable(x.r, o)
			return err
		},
		does: func(x target) string {
			return fmt.Sprintf(does, x.r.Provider) + after(x.r) + callsOff(fleet.Verb(o), x.r)
		},
		destroys: destroys,
		apply: func(ctx context.Context, x target, actor string, outcome *PlanOutcome) (changed bool, err error) {
			outcome.Operation, changed, err = x.t.wantOperation(ctx, x.m, actor, o, x.plan.Reason)
			outcome.Detail = fmt.Sprintf("%s is asked for (operation %d)%s", o, outcome.Operation, callsOff(fleet.Verb(o), x.r))
			if !changed {
				outcome.Detail = fmt.Sprintf("%s was asked for already (operation %d)", o, outcome.Operation)
			}
			return changed, err
		},
	}
}

// always applies what changes something each time it is done. The outcome's detail is that one; "":
// what does has said.
func always(detail string, do func(t *transaction, ctx context.Context, m *machineRecord, actor, reason string) error,
) func(ctx context.Context, x target, actor string, outcome *PlanOutcome) (bool, error) {
	return func(ctx context.Context, x target, actor string, outcome *PlanOutcome) (bool, error) {
		outcome.Detail = cmp.Or(detail, outcome.Detail)
		return true, do(x.t, ctx, x.m, actor, x.plan.Reason)
	}
}

// wasOff says of a machine that is switched on how it was switched off; "": it was not.
func wasOff(r fleet.Record) string {
	if off := lifecycle.SwitchedOff(r); off != "" {
		return ", which was " + off
	}
	return ""
}

// interrupted is what a restart destroys; "": nothing.
func interrupted(r fleet.Record) string {
	switch {
	case openAttempt(r) != nil:
		return "the install ends half-written"
	case inUse(r) != "":
		return "the system that runs is interrupted"
	}
	return ""
}

func nothing(fleet.Record) string { return "" }

func lost(fleet.Record) string { return "the machine is not ours any more, and what is on it is lost" }

// replaced says what the verb takes the place of; "" where that was begun for the same reason.
func (x target) replaced(what, actor, reason string) string {
	if reason == x.plan.Reason {
		return ""
	}
	return fmt.Sprintf("; it takes the place of the %s by %s: %s", what, fleet.ShownActor(actor), reason)
}
