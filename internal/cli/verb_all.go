package cli

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

// maxPlanned is how many machines one plan may have.
const maxPlanned = 1000

// following carries a verb out for the machines that a selector fits, which may be more than one
// plan can have. With yes it makes and confirms plan after plan, each for the machines behind the
// last one of the plan before. Otherwise it shows the first plan, and says how to go on.
type following struct {
	*app
	client  fleetClient
	request *fleetv1.CreatePlanRequest
	f       *verbFlags
	yes     bool
	// each is how long one plan may take.
	each time.Duration
	// all is what became of the machines of all plans.
	all *fleetv1.Plan
	// shown is how many plans were printed.
	shown int
	// left is how many machines --limit leaves.
	left int
}

// run does all of it.
func (o *following) run(ctx context.Context) error {
	o.request.AllowRefused = true
	o.left = cmp.Or(o.f.limit, math.MaxInt)
	for more := true; more; {
		o.request.Limit = int32(min(o.left, maxPlanned))
		before := o.request.GetAfter()
		plan, err := o.one(ctx)
		n := len(plan.GetMachines())
		if n > 0 {
			o.request.After = plan.GetMachines()[n-1].GetMachineId()
		}
		more = n == int(o.request.GetLimit()) && n < o.left
		o.left -= n
		switch begun := len(o.all.GetMachines()) > 0; {
		case err != nil && plan == nil && begun:
			o.note("%s were dealt with. For the others, %s.", plural(len(o.all.GetMachines()), "machine"), o.again())
			return err
		case err != nil && plan != nil && more:
			o.note("For the machines behind those of that plan, %s.", o.again())
			return err
		case err != nil:
			return err
		case n == 0 && !begun:
			return fleet.Errorf(fleet.KindNotFound, "the selector fits no machine behind %s", before)
		case plan.GetId() == "" && !o.yes:
			return o.refused(ctx, plan, more)
		case plan.GetId() == "":
			o.pass(plan)
		case !o.yes:
			return o.end(ctx, plan, more)
		}
		o.all.Verb, o.all.Machines = plan.GetVerb(), append(o.all.Machines, plan.GetMachines()...)
		if more {
			o.note("%s so far. The next plan is for those behind %s.", plural(len(o.all.GetMachines()), "machine"), o.request.GetAfter())
		}
	}
	return o.afterPlan(ctx, o.client, o.all, o.f.wait)
}

// again tells how to go on behind the last machine of the plans so far, with what is left of
// --limit.
func (o *following) again() string {
	rest := ""
	if o.f.limit > 0 {
		rest = fmt.Sprintf(" --limit %d", o.left)
	}
	return fmt.Sprintf("give this command again with --after %s%s", o.request.GetAfter(), rest)
}

// one makes a plan, has it carried out where that is wanted, and prints it. Where there is a plan,
// it is returned with a failure, too. One without an ID is none, and is not printed.
func (o *following) one(ctx context.Context) (*fleetv1.Plan, error) {
	bounded, cancel := withTimeout(ctx, o.each)
	defer cancel()
	plan, err := o.makePlan(bounded, o.client, o.request, o.yes)
	if err != nil || plan.GetId() == "" {
		return plan, err
	}
	if o.shown++; o.shown > 1 && *o.f.output == formatYAML {
		if _, err := o.env.Stdout.Write([]byte("---\n")); err != nil {
			return plan, fmt.Errorf("write the answer: %w", err)
		}
	}
	return plan, o.print(*o.f.output, plan, func(w *screen) { o.showPlan(w, plan) })
}

// pass goes past machines to none of which anything can be done.
func (o *following) pass(plan *fleetv1.Plan) {
	for _, m := range plan.GetMachines() {
		m.Outcome, m.Detail = "refused", m.GetRefused()
	}
	if n := len(plan.GetMachines()); n > 0 {
		o.note("Nothing was done to %s, up to %s: %s", plural(n, "machine"), plan.GetMachines()[n-1].GetName(), plan.GetMachines()[0].GetRefused())
	}
}

// refused ends a command that made no plan: nothing can be done to any of the machines. limited:
// there may be machines behind them.
func (o *following) refused(ctx context.Context, plan *fleetv1.Plan, limited bool) error {
	if limited && o.further(ctx) {
		o.note("That is so of the first %s. For those behind them, %s.", plural(len(plan.GetMachines()), "machine"), o.again())
	}
	return fleet.Errorf(fleet.KindConflict, "%s", plan.GetMachines()[0].GetRefused())
}

// end ends a command that only made a plan, or carried out a harmless one. limited: there may be
// machines behind it.
func (o *following) end(ctx context.Context, plan *fleetv1.Plan, limited bool) error {
	if limited && o.further(ctx) {
		o.note("More machines are selected than one plan can have: this one is for the first %d. For those behind them, %s; "+
			"with --yes, plan after plan is made and confirmed.", len(plan.GetMachines()), o.again())
	}
	if plan.GetConfirmedAt() == nil {
		o.sayHowToConfirm(plan, o.f.wait)
		return nil
	}
	return o.afterPlan(ctx, o.client, plan, o.f.wait)
}

// further asks whether machines are selected behind those of a plan. It says so where that is not
// known.
func (o *following) further(ctx context.Context) bool {
	bounded, cancel := withTimeout(ctx, o.each)
	defer cancel()
	r := o.request
	page, err := o.client.ListMachines(bounded, &fleetv1.ListMachinesRequest{
		Provider: r.GetProvider(), States: r.GetStates(), Locations: r.GetLocations(), Labels: r.GetLabels(), PageToken: r.GetAfter(), PageSize: 1,
	})
	if err != nil {
		o.note("Whether more machines are selected than those of this plan is not known: %s. For those behind them, %s.", message(err), o.again())
	}
	return len(page.GetMachines()) > 0
}
