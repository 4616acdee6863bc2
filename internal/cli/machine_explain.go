package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

func (a *app) machineExplainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain MACHINE",
		Short: "Say what a machine waits for, and why",
		Long: `Explain says, for each process, whether it has anything to do on the machine, when, and why (not). It is the very decision
that the loops act on.`,
		Example:           `  ironherd machine explain herd-0007`,
		Args:              exactly,
		ValidArgsFunction: firstArgument(a.completeMachines),
	}
	return question(a, cmd, func(ctx context.Context, client fleetClient, args []string) (*fleetv1.ExplainMachineResponse, error) {
		return client.ExplainMachine(ctx, &fleetv1.ExplainMachineRequest{Machine: args[0]})
	}, a.explainMachine)
}

func (a *app) explainMachine(w *screen, r *fleetv1.ExplainMachineResponse) {
	w.line("%s is %s. %s", machineName(r.GetMachine()), fleet.State(r.GetMachine().GetState()).Words(), a.asked(r.GetSummary()))
	if n := r.GetNext(); n.GetWho() != "" {
		w.line("Next: %s", a.nextStep(n))
	}
	w.line("")
	a.decisionTable(w, r.GetDecisions())
}

// nextStep says who acts next, by when, and what somebody would type.
func (a *app) nextStep(n *fleetv1.NextStep) string {
	s := n.GetWho()
	if n.GetBy() != nil {
		s += ", " + due(n.GetBy())
	}
	switch {
	case n.GetCommand() != "":
		s += ": " + a.told(n.GetCommand())
	case n.GetWho() == "operator": // there is no command for it
		s += ": " + a.asked(n.GetWhat())
	}
	return s
}

func (a *app) decisionTable(w *screen, decisions []*fleetv1.Decision) {
	rows := make([][]string, len(decisions))
	for i, d := range decisions {
		when := due(d.GetDueAt())
		if d.GetSession() != "" {
			when = fmt.Sprintf("until %s", instant(d.GetDueAt()))
		}
		rows[i] = []string{d.GetProcess(), d.GetVerdict(), when, a.asked(d.GetReason())}
	}
	w.table([]string{"PROCESS", "VERDICT", "WHEN", "WHY"}, rows)
}
