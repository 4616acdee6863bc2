package bmdbtest

import (
	"context"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// What people do by plans, each to one machine.

// Act makes a plan for the machine alone and confirms it; both anew where the machine has changed
// in between. Its error says why nothing was done.
func Act(ctx context.Context, db *bmdb.DB, actor string, machine fleet.MachineID, r bmdb.PlanRequest) (bmdb.PlanOutcome, error) {
	r.Machines = []fleet.MachineID{machine}
	for {
		p, err := db.CreatePlan(ctx, actor, r)
		if err == nil {
			p, err = db.ConfirmPlan(ctx, actor, p.ID)
		}
		if err != nil {
			return bmdb.PlanOutcome{}, err
		}
		switch o := p.Outcomes[0]; o.Outcome {
		case bmdb.OutcomeDone:
			return o, nil
		case bmdb.OutcomeRefused:
			return o, fleet.Errorf(fleet.KindConflict, "%s", o.Detail)
		case bmdb.OutcomeSkipped:
		}
	}
}

func act(ctx context.Context, db *bmdb.DB, actor string, machine fleet.MachineID, verb fleet.Verb, reason string) error {
	_, err := Act(ctx, db, actor, machine, bmdb.PlanRequest{Verb: verb, Reason: reason})
	return err
}

// Quarantine keeps all work away from the machine.
func Quarantine(ctx context.Context, db *bmdb.DB, actor string, machine fleet.MachineID, reason string) error {
	return act(ctx, db, actor, machine, fleet.VerbQuarantine, reason)
}

// Unquarantine ends its quarantine.
func Unquarantine(ctx context.Context, db *bmdb.DB, actor string, machine fleet.MachineID, reason string) error {
	return act(ctx, db, actor, machine, fleet.VerbUnquarantine, reason)
}

// BeginMaintenance keeps everything away from its host; until nil: until EndMaintenance.
func BeginMaintenance(ctx context.Context, db *bmdb.DB, actor string, machine fleet.MachineID, until *time.Time, reason string) error {
	_, err := Act(ctx, db, actor, machine, bmdb.PlanRequest{Verb: fleet.VerbBeginMaintenance, Until: until, Reason: reason})
	return err
}

// EndMaintenance ends its maintenance.
func EndMaintenance(ctx context.Context, db *bmdb.DB, actor string, machine fleet.MachineID, reason string) error {
	return act(ctx, db, actor, machine, fleet.VerbEndMaintenance, reason)
}

// Operate asks for an operation, and returns its number.
func Operate(ctx context.Context, db *bmdb.DB, actor string, machine fleet.MachineID, o fleet.Operation, reason string) (int64, error) {
	outcome, err := Act(ctx, db, actor, machine, bmdb.PlanRequest{Verb: fleet.Verb(o), Reason: reason})
	return outcome.Operation, err
}

// Withdraw calls its operation off.
func Withdraw(ctx context.Context, db *bmdb.DB, actor string, machine fleet.MachineID, reason string) error {
	return act(ctx, db, actor, machine, fleet.VerbWithdraw, reason)
}

// CancelInstall calls its install off, and says whether an agent has it.
func CancelInstall(ctx context.Context, db *bmdb.DB, actor string, machine fleet.MachineID, reason string) (handedOut bool, err error) {
	outcome, err := Act(ctx, db, actor, machine, bmdb.PlanRequest{Verb: fleet.VerbCancelInstall, Reason: reason})
	return strings.Contains(outcome.Detail, "its agent is told"), err
}

// Forget removes what is known of it.
func Forget(ctx context.Context, db *bmdb.DB, actor string, machine fleet.MachineID, reason string) error {
	return act(ctx, db, actor, machine, fleet.VerbForget, reason)
}
