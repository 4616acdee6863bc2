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
	// each is how long one plan may take; 0: no limit.
	each time.Duration
	// all is what became of the machines of all plans.
	all *fleetv1.Plan
	// shown is how many plans were printed.
	shown int
}

// run does all of it.
func (o *following) run(ctx context.Context) error {
	left, more := cmp.Or(o.f.limit, math.MaxInt), true
	for more && left > 0 {
		o.request.Limit = int32(min(left, maxPlanned))
		before := len(o.all.GetMachines())
		plan, err := o.one(ctx)
		if n := len(plan.GetMachines()); n > 0 {
			o.request.After, more = plan.GetMachines()[n-1].GetMachineId(), n == int(o.request.GetLimit()) && n < left
		}
		switch {
		case err != nil && plan == nil:
			if more, err = o.pass(ctx, err); err != nil {
				return err
			}
		case err != nil && more:
			o.note("For the machines behind those of that plan, give this command again with --after %s.", o.request.GetAfter())
			return err
		case err != nil:
			return err
		case !o.yes:
			return o.end(ctx, plan, more)
		default:
			o.all.Verb, o.all.Machines = plan.GetVerb(), append(o.all.Machines, plan.GetMachines()...)
		}
		left -= len(o.all.GetMachines()) - before
		if more && left > 0 {
			o.note("%s so far. The next plan is for those behind %s.", plural(len(o.all.GetMachines()), "machine"), o.request.GetAfter())
		}
	}
	return o.afterPlan(ctx, o.client, o.all, o.f.wait)
}

// one makes a plan, has it carried out where that is wanted, and prints it. Where there is a plan,
// it is returned with a failure, too.
func (o *following) one(ctx context.Context) (*fleetv1.Plan, error) {
	bounded, cancel := withTimeout(ctx, o.each)
	defer cancel()
	plan, err := o.makePlan(bounded, o.client, o.request, o.yes)
	if err != nil {
		return plan, err
	}
	if o.shown++; o.shown > 1 && *o.f.output == formatYAML {
		if _, err := o.env.Stdout.Write([]byte("---\n")); err != nil {
			return plan, fmt.Errorf("write the answer: %w", err)
		}
	}
	return plan, o.print(*o.f.output, plan, func(w *screen) { showPlan(w, plan) })
}

// pass goes past machines to none of which anything can be done, and past the end of what the
// selector fits. Any other failure is returned, after a word on how to go on.
func (o *following) pass(ctx context.Context, failure error) (more bool, err error) {
	begun := len(o.all.GetMachines()) > 0
	switch kindOf(failure) {
	case fleet.KindConflict, fleet.KindUnsupported, fleet.KindNotFound:
	default:
		return false, o.stopped(failure, begun)
	}
	page, err := o.list(ctx, o.request.GetLimit())
	machines := page.GetMachines()
	switch {
	case err != nil:
		return false, o.stopped(err, begun)
	case len(machines) == 0 && begun:
		return false, nil
	case kindOf(failure) == fleet.KindNotFound, page.GetNextPageToken() == "" && !begun:
		return false, o.stopped(failure, begun)
	}
	last := machines[len(machines)-1]
	if !o.yes {
		o.note("That is so of the first %s. For those behind them, give this command again with --after %s.", plural(len(machines), "machine"), last.GetId())
		return false, failure
	}
	o.note("Nothing was done to %s, up to %s: %s", plural(len(machines), "machine"), machineName(last), message(failure))
	for _, m := range machines {
		o.all.Machines = append(o.all.Machines, &fleetv1.PlannedMachine{MachineId: m.GetId(), Name: machineName(m), Outcome: "refused", Detail: message(failure)})
	}
	o.request.After = last.GetId()
	return page.GetNextPageToken() != "", nil
}

// stopped says how to go on with the machines that no plan was confirmed for.
func (o *following) stopped(err error, begun bool) error {
	if begun {
		o.note("%s were dealt with. For the others, give this command again with --after %s.", plural(len(o.all.GetMachines()), "machine"), o.request.GetAfter())
	}
	return err
}

// end ends a command that only made a plan, or carried out a harmless one. limited: there may be
// machines behind it.
func (o *following) end(ctx context.Context, plan *fleetv1.Plan, limited bool) error {
	if limited {
		switch page, err := o.list(ctx, 1); {
		case err != nil:
			o.note("Whether more machines are selected than those of this plan is not known: %s. For those behind them, give this command again with --after %s.",
				message(err), o.request.GetAfter())
		case len(page.GetMachines()) > 0:
			o.note("More machines are selected than one plan can have: this one is for the first %d. For those behind them, give this command again with --after %s; "+
				"with --yes, plan after plan is made and confirmed.", len(plan.GetMachines()), o.request.GetAfter())
		}
	}
	if plan.GetConfirmedAt() == nil {
		o.sayHowToConfirm(plan, o.f.wait)
		return nil
	}
	return o.afterPlan(ctx, o.client, plan, o.f.wait)
}

// list returns so many of the machines that are still selected.
func (o *following) list(ctx context.Context, n int32) (*fleetv1.ListMachinesResponse, error) {
	bounded, cancel := withTimeout(ctx, o.each)
	defer cancel()
	r := o.request
	return o.client.ListMachines(bounded, &fleetv1.ListMachinesRequest{
		Provider: r.GetProvider(), States: r.GetStates(), Locations: r.GetLocations(), PageToken: r.GetAfter(), PageSize: n,
	})
}
