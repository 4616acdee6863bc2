package cli

import (
	"github.com/spf13/cobra"

	"github.com/ironherd/ironherd/internal/fleet"
)

func (a *app) machineForgetCommand() *cobra.Command {
	return a.verbCommand(verb{
		use: "forget", verb: fleet.VerbForget,
		short: "Remove machines that their provider does not have any more",
		long: `Forget removes what is known of machines, but for their history. It is refused while the provider has not said that a machine is gone: nothing
is forgotten that may still run. Only where no live control plane serves the provider any more, nobody can ask it: there it is done all the same,
and the plan says so. A discrepancy about the machine ends with it. A list that has its host, under whatever id, takes that in anew: where it is in
use, a plan says so first.`,
		example: `  ironherd machine forget herd-0007 --reason "sold"
  ironherd machine forget --state missing --reason "rack 4 is gone"
  ironherd machine forget --provider oldlab --reason "the lab is closed"`,
	}, nil)
}
