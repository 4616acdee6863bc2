package cli

import (
	"context"

	"github.com/spf13/cobra"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

func (a *app) discrepancyCommand() *cobra.Command {
	return group("discrepancy", "Look at where a provider and the database disagree, and settle it",
		a.discrepancyListCommand(), a.discrepancyAdoptCommand(), a.discrepancyForgetCommand())
}

func (a *app) discrepancyListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List discrepancies with their evidence and what can be done",
		Long: `A discrepancy is a used machine at a provider that the database does not know, or a machine of the database that the provider does
not have. While there is one, nothing new is created at that provider; what is managed is looked after all the same. It clears
itself when the two agree again. What differs is known from passes over each provider's list: a provider that none has compared lately is
named, and after a restore one that none has compared since, until that is accepted.`,
		Example: `  ironherd discrepancy list`,
		Args:    exactly,
	}
	return question(a, cmd, func(ctx context.Context, client fleetClient, _ []string) (*fleetv1.ListDiscrepanciesResponse, error) {
		return client.ListDiscrepancies(ctx, &fleetv1.ListDiscrepanciesRequest{})
	}, a.discrepancyTable)
}

func (a *app) discrepancyTable(w *screen, response *fleetv1.ListDiscrepanciesResponse) {
	all, uncompared := response.GetDiscrepancies(), response.GetUncompared()
	switch {
	case len(all) > 0:
		a.discrepancyRows(w, all)
	case len(uncompared) == 0:
		w.line("Providers and database agree.")
	default:
		w.line("Nothing is known to differ.")
	}
	for _, u := range uncompared {
		w.line("Provider %s may differ: %s (`%s`)", u.GetProvider(), u.GetWhy(), a.command("provider show "+u.GetProvider()))
	}
}

func (a *app) discrepancyRows(w *screen, all []*fleetv1.Discrepancy) {
	rows := make([][]string, len(all))
	for i, d := range all {
		rows[i] = []string{
			d.GetProvider(), d.GetKind(), d.GetProviderId(), d.GetMachineId(), age(d.GetSince()), d.GetEvidence(), a.asked(d.GetRemedy()),
		}
	}
	w.table([]string{"PROVIDER", "KIND", "PROVIDER ID", "MACHINE", "SINCE", "EVIDENCE", "REMEDY"}, rows)
}
