package cli

import (
	"github.com/spf13/cobra"

	"github.com/ironherd/ironherd/internal/fleet"
)

func (a *app) machineReleaseCommand() *cobra.Command {
	return a.verbCommand(verb{
		use: "release", verb: fleet.VerbRelease, waits: true,
		short: "Give machines back to their provider, and ask for no others",
		long: `Release gives machines back. What is on them is lost to us. A machine is watched until its provider says that it is gone; then only its
history is kept. Its capacity is not used again until ironherd provider retry PROVIDER --capacity ID --reason WHY. What the provider has not
accepted yet can be called off with ironherd machine withdraw.`,
		example: `  ironherd machine release herd-0007 --reason "not needed any more"
  ironherd machine release herd-0007 herd-0008 --reason "end of lease" --yes --wait`,
	}, nil)
}

func (a *app) machineReplaceCommand() *cobra.Command {
	return a.verbCommand(verb{
		use: "replace", verb: fleet.VerbReplace, waits: true,
		short: "Give machines back to their provider, and let others take their place",
		long: `Replace gives machines back as release does, but their provider may then be asked for others, as far as its configuration wants. The capacity
of a machine that the provider gave up, or that is in quarantine, by recovery or by a person, sits out a penalty first, so that the same
hardware does not come back at once. Of any other machine the same hardware may be given again, and of a list of hosts the next pass takes the
same host in again: quarantine what is broken first.`,
		example: `  ironherd machine replace herd-0007 --reason "its provider gave it up"
  ironherd machine quarantine herd-0007 --reason "it corrupts data"
  ironherd machine replace herd-0007 --reason "it corrupts data"
  ironherd machine replace --state failed --reason "the outage of rack 4"`,
	}, nil)
}
