package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

func (a *app) providerCommand() *cobra.Command {
	return group("provider", "Look at where machines come from", a.providerListCommand())
}

func (a *app) providerListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List providers and how their last passes went",
		Example: `  ironherd provider list`,
		Args:    cobra.NoArgs,
	}
	timeout, output := timeoutFlag(cmd, defaultTimeout, timeoutUsage), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.ask(cmd, *timeout, func(ctx context.Context, client fleetClient) error {
			response, err := client.ListProviders(ctx, &fleetv1.ListProvidersRequest{})
			if err != nil {
				return err
			}
			return a.print(*output, response, func(w *screen) { providerTable(w, response.GetProviders()) })
		})
	}
	return cmd
}

func providerTable(w *screen, providers []*fleetv1.Provider) {
	if len(providers) == 0 {
		w.line("No providers are configured.")
		return
	}
	rows := make([][]string, len(providers))
	for i, p := range providers {
		maximum := "no limit"
		if p.GetMaxMachines() > 0 {
			maximum = fmt.Sprint(p.GetMaxMachines())
		}
		rows[i] = []string{
			p.GetName(), p.GetKind(), fmt.Sprint(p.GetMachines()), maximum, fmt.Sprint(p.GetOpenIntents()),
			fmt.Sprint(p.GetDiscrepancies()), fmt.Sprint(p.GetPenalties()), age(p.GetLastPassAt()), p.GetLastPass(),
		}
	}
	w.table([]string{"NAME", "KIND", "MACHINES", "MAXIMUM", "INTENTS", "DISCREPANCIES", "PENALTIES", "PASS", "LAST PASS"}, rows)
}
