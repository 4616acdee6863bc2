package operations

import (
	"context"
	"fmt"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// errUnwanted says that the policy does not have a machine replaced now.
var errUnwanted = fleet.Errorf(fleet.KindConflict, "the policy does not have it replaced now")

// byPolicy is the outcome of what the policy has asked for, and does not want any more, or not yet;
// nil: it goes on. What was asked for may be older than a change of the policy, and than a sign of
// life.
func (o *operation) byPolicy(ctx context.Context, fact fleet.Provided, seen bmdb.Change) shepherd.Outcome {
	if o.request.Actor != fleet.ActorPolicy || fact.Status == fleet.ProviderStatusDeleting {
		return nil
	}
	r := o.work.Record
	if was := r.Provided; was != nil && was.Status == fact.Status {
		fact.At = was.At // since when it says so, as the database has it
	}
	r.Provided = &fact
	switch wanted, notYet := lifecycle.Replaces(r, o.env, o.now); {
	case !wanted && o.releaseMayBeHeard():
		return o.fail(fmt.Sprintf("the policy does not want it any more; %s may do it all the same: the reply to an earlier call, at %s, was not clear",
			o.source.Name, fleet.Instant(o.attempt.At)), seen)
	case !wanted:
		return o.unwanted("the policy does not want it any more", seen)
	case notYet != "" && o.attempt == nil: // lifecycle says when it is looked at again
		return shepherd.Cancel{Reason: notYet, Changes: []bmdb.Change{seen}}
	case notYet != "":
		return shepherd.Fail{Err: provider.Queued(fleet.Errorf(fleet.KindTemporary, "%s", notYet)), Changes: []bmdb.Change{seen}}
	}
	if err := o.tooMany(ctx, o.source.Name); err != nil {
		return shepherd.Fail{Err: provider.Queued(err), Changes: []bmdb.Change{seen}}
	}
	return nil
}

// tooMany fails while the provider has given up so many of its machines that its word cannot be
// right, as that of a list of which so many are missing. The policy replaces none of them then.
func (o *Operations) tooMany(ctx context.Context, name fleet.ProviderName) error {
	givenUp, all, err := o.db.CountGivenUp(ctx, name)
	if err != nil {
		return fmt.Errorf("count the machines that the provider has given up: %w", err)
	}
	if !provider.SuddenLoss(all, givenUp) {
		return nil
	}
	return fleet.Errorf(fleet.KindTemporary, "%s has given up %d of its %d machines (those in quarantine, and those that are given back, count), and may be wrong: the policy replaces none of them meanwhile; "+
		"where it is right, `ironherd machine replace ID --reason WHY` gives one back", name, givenUp, all)
}

// stillWanted fails with errUnwanted when the policy, as it is now, does not have the machine
// replaced, as it is now.
func (o *operation) stillWanted(ctx context.Context) error {
	if o.request.Actor != fleet.ActorPolicy {
		return nil
	}
	d, err := o.db.MachineDetails(ctx, o.work.Record.ID)
	if err != nil {
		return fmt.Errorf("read whether the policy wants it still: %w", err)
	}
	wanted, notYet := lifecycle.Replaces(d.Record, d.Environment, d.Now)
	switch {
	case !wanted:
		return errUnwanted
	case notYet != "":
		return fmt.Errorf("%w: %s", errUnwanted, notYet)
	}
	if err := o.tooMany(ctx, o.source.Name); fleet.KindOf(err) == fleet.KindTemporary {
		return fmt.Errorf("%w: %w", errUnwanted, err)
	} else if err != nil {
		return err
	}
	return nil
}
