package cli

import (
	"github.com/spf13/cobra"

	"github.com/ironherd/ironherd/internal/fleet"
)

func (a *app) machineMarkInstalledCommand() *cobra.Command {
	return a.verbCommand(verb{
		use: "mark-installed", verb: fleet.VerbMarkInstalled,
		short: "Say that an operating system runs on machines, which is to be left alone",
		long: `Mark-installed says that an operating system runs on machines, of which the database does not know: it was installed after the backup that was
restored, or by other means. From then on the machine is installed: no agent is started on it, and recovery leaves it alone. An install that was asked
for counts as done. ironherd machine install --reinstall --erase takes the machine back.

It is refused while an agent speaks from the machine.`,
		example: `  ironherd machine mark-installed herd-0007 --reason "installed after the backup"
  ironherd machine mark-installed --provider rack --state silent --reason "installed after the backup"`,
	}, nil)
}
