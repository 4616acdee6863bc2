package cli

import (
	"github.com/spf13/cobra"

	"github.com/ironherd/ironherd/internal/fleet"
)

func (a *app) machinePowerCommand() *cobra.Command {
	return group("power", "Have machines switched on or off by their provider",
		a.verbCommand(verb{
			use: "on", verb: fleet.VerbPowerOn, waits: true,
			short:   "Switch machines on",
			long:    `On has the provider switch machines on. It is done when the provider says so.`,
			example: `  ironherd machine power on herd-0007 --reason "back from repair" --wait`,
		}, nil),
		a.verbCommand(verb{
			use: "off", verb: fleet.VerbPowerOff, waits: true,
			short: "Switch machines off",
			long: `Off has the provider switch machines off, whatever runs on them. It is done when the provider says so. A machine that was switched off is
not repaired, and stays off until ironherd machine power on.`,
			example: `  ironherd machine power off herd-0007 --reason "smells burnt" --yes
  ironherd machine power off --provider metal --state available --reason "not needed at night"`,
		}, nil),
		a.verbCommand(verb{
			use: "cycle", verb: fleet.VerbPowerCycle, waits: true,
			short: "Switch machines off and on",
			long: `Cycle has the provider switch machines off and on again. It is done when a machine has come back with another boot ID; of an installed
system, on which nothing of ours runs, when the provider has accepted it.`,
			example: `  ironherd machine power cycle herd-0007 --reason "a reboot did not help" --wait`,
		}, nil),
	)
}
