package cli

import (
	"github.com/spf13/cobra"

	"github.com/ironherd/ironherd/internal/fleet"
)

func (a *app) machineQuarantineCommand() *cobra.Command {
	return a.verbCommand(verb{
		use: "quarantine", verb: fleet.VerbQuarantine,
		short: "Keep all work away from machines",
		long: `Quarantine keeps all work away from machines, until ironherd machine unquarantine. What is being done to a machine is voided; an install that
its agent works at goes on there, and what the provider was asked for already may still come: the outcome says so. Where another person has
quarantined a machine, it is refused.`,
		example: `  ironherd machine quarantine herd-0007 --reason "corrupts data"`,
	}, nil)
}

func (a *app) machineUnquarantineCommand() *cobra.Command {
	return a.verbCommand(verb{
		use: "unquarantine", verb: fleet.VerbUnquarantine,
		short:   "Let work come back to machines in quarantine",
		long:    `Unquarantine ends the quarantine of machines. Recovery begins anew with its mildest step.`,
		example: `  ironherd machine unquarantine herd-0007 --reason "memory replaced"`,
	}, nil)
}
