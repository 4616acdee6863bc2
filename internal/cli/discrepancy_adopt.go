package cli

import (
	"context"

	"github.com/spf13/cobra"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

func (a *app) discrepancyAdoptCommand() *cobra.Command {
	var (
		reason    string
		installed bool
	)
	cmd := &cobra.Command{
		Use:   "adopt PROVIDER PROVIDER-ID",
		Short: "Manage a machine that the provider has and the database does not know",
		Long: `Adopt wants a machine managed that a discrepancy of the kind unknown-machine names. The next pass takes it in; from then on it is looked after
as every other machine: an agent is started on it, which ends what runs there where the provider's takeover is kexec. With --installed it is
marked as installed instead, and left alone. While the provider is paused there is no pass.`,
		Example: `  ironherd discrepancy list
  ironherd discrepancy adopt metal dev-16 --installed --reason "made after the backup, serves the shop"
  ironherd discrepancy adopt metal dev-17 --reason "made by hand"
  ironherd discrepancy adopt metal dev-18 --reason "made by hand" -o json`,
		Args:              exactly,
		ValidArgsFunction: firstArgument(a.completeProviders),
	}
	cmd.Flags().StringVar(&reason, "reason", "", reasonUsage)
	cmd.Flags().BoolVar(&installed, "installed", false, "an operating system runs there that is to be left alone")
	timeout, output := timeoutFlag(cmd, defaultTimeout, timeoutUsage), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkReason(reason); err != nil {
			return err
		}
		return a.ask(cmd, *timeout, func(ctx context.Context, client fleetClient) error {
			response, err := client.AdoptMachine(ctx, &fleetv1.AdoptMachineRequest{Provider: args[0], ProviderId: args[1], Installed: installed, Reason: reason})
			if err != nil {
				return err
			}
			words := ""
			if installed {
				words = " as installed"
				if !response.GetInstalled() {
					return fleet.Errorf(fleet.KindUnsupported, "the control plane is older than this command, and takes %s in without --installed: an agent is started on it. "+
						"`%s` at once holds the pass back that takes it in", args[1], a.command("provider pause "+args[0]+" --reason WHY"))
				}
			}
			if p := response.GetPaused(); p != nil {
				return a.say(*output, response, "%s of %s is taken in%s when %s is resumed. %s", args[1], args[0], words, args[0], a.paused(p))
			}
			return a.say(*output, response, "%s of %s is taken in%s with the next pass", args[1], args[0], words)
		})
	}
	return cmd
}
