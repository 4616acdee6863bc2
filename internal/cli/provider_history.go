package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

func (a *app) providerHistoryCommand() *cobra.Command {
	var limit int32
	var passes bool
	cmd := &cobra.Command{
		Use:   "history PROVIDER",
		Short: "Tell what was done at a provider, when, and how it ended",
		Long: `History tells who paused a provider, resumed it, or stopped recovery, which passes at it failed, when its list began to disagree with what is known
here, and the penalties of its capacity. With --passes it tells the passes that finished, too.`,
		Example: `  ironherd provider history metal --limit 20
  ironherd provider history metal --passes`,
		Args:              exactly,
		ValidArgsFunction: firstArgument(a.completeProviders),
	}
	cmd.Flags().Int32Var(&limit, "limit", defaultHistory, historyLimitUsage)
	cmd.Flags().BoolVar(&passes, "passes", false, "also tell the passes that finished")
	timeout, output := timeoutFlag(cmd, defaultTimeout, timeoutUsage), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.history(cmd, *timeout, *output, &fleetv1.ListHistoryRequest{Provider: args[0], Limit: limit, WithoutFinished: !passes})
	}
	return cmd
}

// history asks for a history and prints it.
func (a *app) history(cmd *cobra.Command, timeout time.Duration, output format, request *fleetv1.ListHistoryRequest) error {
	if request.GetLimit() < 1 || request.GetLimit() > maxHistory {
		return fleet.Errorf(fleet.KindInvalid, "--limit must be from 1 to %d, not %d", maxHistory, request.GetLimit())
	}
	return a.ask(cmd, timeout, func(ctx context.Context, client fleetClient) error {
		response, err := client.ListHistory(ctx, request)
		if err != nil {
			return err
		}
		return a.print(output, response, func(w *screen) {
			if request.GetWithoutFinished() && len(response.GetEntries()) == 0 {
				w.line("Nothing has happened but passes that finished, which --passes tells.")
				return
			}
			historyTable(w, response.GetEntries())
		})
	})
}
