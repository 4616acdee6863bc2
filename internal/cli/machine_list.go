package cli

import (
	"context"

	"github.com/spf13/cobra"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

func (a *app) machineListCommand() *cobra.Command {
	var which selector
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List machines and what state they are in",
		Example: `  ironherd machine list
  ironherd machine list --state silent --state failed
  ironherd machine list --location "rack 4"
  ironherd machine list --provider metal -o json`,
		Args: exactly,
	}
	a.selectorFlags(cmd, &which, "only machines")
	timeout, output := timeoutFlag(cmd, defaultTimeout, timeoutUsage), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := which.check(); err != nil {
			return err
		}
		return a.ask(cmd, *timeout, func(ctx context.Context, client fleetClient) error {
			all, err := which.list(ctx, client)
			if err != nil {
				return err
			}
			return a.print(*output, &fleetv1.ListMachinesResponse{Machines: all}, func(w *screen) { machineTable(w, all) })
		})
	}
	return cmd
}

func machineTable(w *screen, machines []*fleetv1.Machine) {
	if len(machines) == 0 {
		w.line("No machines.")
		return
	}
	rows := make([][]string, len(machines))
	for i, m := range machines {
		rows[i] = []string{
			m.GetHostname(), m.GetState(), age(m.GetStateSince()), m.GetAddress(), m.GetLocation(), m.GetProvider(),
			age(m.GetLastSeenAt()), m.GetId(),
		}
	}
	w.table([]string{"HOSTNAME", "STATE", "SINCE", "ADDRESS", "LOCATION", "PROVIDER", "SEEN", "ID"}, rows)
}
