package cli

import (
	"time"

	"github.com/spf13/cobra"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

func (a *app) machineMaintenanceCommand() *cobra.Command {
	return group("maintenance", "Keep Ironherd from touching hosts that somebody works on",
		a.maintenanceBeginCommand(),
		a.verbCommand(verb{
			use: "end", verb: fleet.VerbEndMaintenance,
			short:   "End the maintenance of machines",
			long:    `End lets Ironherd look after the machines again. Their silence counts from now on.`,
			example: `  ironherd machine maintenance end herd-0007 --reason "the disk is in"`,
		}, nil))
}

func (a *app) maintenanceBeginCommand() *cobra.Command {
	var lasts time.Duration
	var at string
	var cmd *cobra.Command
	cmd = a.verbCommand(verb{
		use: "begin", verb: fleet.VerbBeginMaintenance,
		short: "Begin the maintenance of machines",
		long: `Begin keeps Ironherd from touching the hosts: no agent is started, nothing is installed or rebooted, and silence is expected. It ends by
itself with --for or --until, else with ironherd machine maintenance end. An install that its agent works at goes on, and restarts the machine
(ironherd machine install --cancel ends it), and what the provider was asked for already may still come: the plan says so, and wants a confirmation.
During a maintenance of another person it is refused.`,
		example: `  ironherd machine maintenance begin herd-0007 --for 2h --reason "swap a disk"
  ironherd machine maintenance begin herd-0007 --until $(date -u -d tomorrow +%FT18:00:00Z) --reason "move to rack 9"`,
	}, func(request *fleetv1.CreatePlanRequest) error {
		end, err := endOf(cmd, lasts, at)
		request.Until, request.Lasts = end.until, end.lasts
		return err
	})
	cmd.Flags().DurationVar(&lasts, "for", 0, "how long, such as 2h; it ends by itself then")
	cmd.Flags().StringVar(&at, "until", "", "when it ends by itself, such as 2026-11-22T18:00:00Z")
	return cmd
}
