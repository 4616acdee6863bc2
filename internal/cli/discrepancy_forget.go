package cli

import (
	"github.com/spf13/cobra"

	"github.com/ironherd/ironherd/internal/fleet"
)

func (a *app) discrepancyForgetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "forget PROVIDER PROVIDER-ID",
		Short: "End a discrepancy about a machine that is gone",
		Long: `Forget removes the machine that the database has and the provider has not, but for its history; that ends the discrepancy. It is refused
while the provider has not said that the machine is gone. A list that has the host, under whatever id, takes it in anew: where it is in use, a plan
says so first, to be confirmed with ironherd plan confirm, or give --yes to have it made and confirmed in one.`,
		Example: `  ironherd discrepancy list
  ironherd discrepancy forget metal dev-17 --reason "sold"`,
		Args:              exactly,
		ValidArgsFunction: firstArgument(a.completeProviders),
	}
	var f verbFlags
	cmd.Flags().StringVar(&f.reason, "reason", "", reasonUsage)
	cmd.Flags().BoolVar(&f.yes, "yes", false, yesUsage)
	f.timeout, f.output = timeoutFlag(cmd, confirmTimeout, timeoutUsage), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request, err := f.request(fleet.VerbForget, []string{args[0] + "/" + args[1]})
		if err != nil {
			return err
		}
		return a.carryOut(cmd, request, &f)
	}
	return cmd
}
