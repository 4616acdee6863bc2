package bmdbtest

import (
	"context"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// What people do by plans, each to one machine, at once.

func act(ctx context.Context, db *bmdb.DB, actor string, machine fleet.MachineID, verb fleet.Verb, reason string) error {
	_, err := db.Act(ctx, actor, machine, bmdb.PlanRequest{Verb: verb, Reason: reason})
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
	_, err := db.Act(ctx, actor, machine, bmdb.PlanRequest{Verb: fleet.VerbBeginMaintenance, Until: until, Reason: reason})
	return err
}

// EndMaintenance ends its maintenance.
func EndMaintenance(ctx context.Context, db *bmdb.DB, actor string, machine fleet.MachineID, reason string) error {
	return act(ctx, db, actor, machine, fleet.VerbEndMaintenance, reason)
}

// Operate asks for an operation, and returns its number.
func Operate(ctx context.Context, db *bmdb.DB, actor string, machine fleet.MachineID, o fleet.Operation, reason string) (int64, error) {
	outcome, err := db.Act(ctx, actor, machine, bmdb.PlanRequest{Verb: fleet.Verb(o), Reason: reason})
	return outcome.Operation, err
}

// Withdraw calls its operation off.
func Withdraw(ctx context.Context, db *bmdb.DB, actor string, machine fleet.MachineID, reason string) error {
	return act(ctx, db, actor, machine, fleet.VerbWithdraw, reason)
}

// CancelInstall calls its install off, and says whether an agent has it.
func CancelInstall(ctx context.Context, db *bmdb.DB, actor string, machine fleet.MachineID, reason string) (handedOut bool, err error) {
	outcome, err := db.Act(ctx, actor, machine, bmdb.PlanRequest{Verb: fleet.VerbCancelInstall, Reason: reason})
	return strings.Contains(outcome.Detail, "its agent is told"), err
}

// Forget removes what is known of it.
func Forget(ctx context.Context, db *bmdb.DB, actor string, machine fleet.MachineID, reason string) error {
	return act(ctx, db, actor, machine, fleet.VerbForget, reason)
}
