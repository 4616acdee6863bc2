package cli

import (
	"context"
	"fmt"
	"strings"

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
	n, summary := r.GetNext(), r.GetSummary()
	command := n.GetCommand()
	if command != "" { // the control plane does not know how it was reached
		command = a.command(strings.TrimPrefix(command, "ironherd "))
		summary = strings.ReplaceAll(summary, "`"+n.GetCommand()+"`", "`"+command+"`")
	}
	w.line("%s is %s. %s", machineName(r.GetMachine()), fleet.State(r.GetMachine().GetState()).Words(), summary)
	if n.GetWho() != "" {
		w.line("Next: %s", nextStep(n, command))
	}
	w.line("")
	decisionTable(w, r.GetDecisions())
}

// nextStep says who acts next, by when, and the command that somebody would type; "": there is
// none.
func nextStep(n *fleetv1.NextStep, command string) string {
	s := n.GetWho()
	if n.GetBy() != nil {
		s += ", " + due(n.GetBy())
	}
	switch {
	case command != "":
		s += ": " + command
	case n.GetWho() == "operator": // there is no command for it
		s += ": " + n.GetWhat()
	}
	return s
}

func decisionTable(w *screen, decisions []*fleetv1.Decision) {
	rows := make([][]string, len(decisions))
	for i, d := range decisions {
		when := due(d.GetDueAt())
		if d.GetSession() != "" {
			when = fmt.Sprintf("until %s", instant(d.GetDueAt()))
		}
		rows[i] = []string{d.GetProcess(), d.GetVerdict(), when, d.GetReason()}
	}
	w.table([]string{"PROCESS", "VERDICT", "WHEN", "WHY"}, rows)
}
