package cli

import (
	"github.com/spf13/cobra"

	"github.com/ironherd/ironherd/internal/fleet"
)

func (a *app) machineWithdrawCommand() *cobra.Command {
	return a.verbCommand(verb{
		use: "withdraw", verb: fleet.VerbWithdraw,
		short: "Call off what was asked for and no provider has accepted yet",
		long: `Withdraw calls off the reboot, the switching, the release or the replacement of machines. It is refused when the provider has accepted it.
An install is called off with ironherd machine install --cancel.`,
		example: `  ironherd machine withdraw herd-0007 --reason "the wrong machine"`,
	}, nil)
}
