package cli

import (
	"github.com/spf13/cobra"

	"github.com/ironherd/ironherd/internal/fleet"
)

func (a *app) machineRebootCommand() *cobra.Command {
	return a.verbCommand(verb{
		use: "reboot", verb: fleet.VerbReboot, waits: true,
		short: "Have machines restarted by their provider",
		long: `Reboot has the provider restart machines. It is done when a machine has come back with another boot ID; of an installed system, on which
nothing of ours runs, when the provider has accepted it.`,
		example: `  ironherd machine reboot herd-0007 --reason "kernel hangs" --wait
  ironherd machine reboot --state silent --provider metal --reason "after the outage"`,
	}, nil)
}
