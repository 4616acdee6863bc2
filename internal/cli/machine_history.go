package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

// How many entries of a history are shown, unless --limit says so, and at most.
const (
	defaultHistory    = 200
	maxHistory        = 1000
	historyLimitUsage = "show at most this many of the newest entries (1 to 1000)"
)

func (a *app) machineHistoryCommand() *cobra.Command {
	var limit int32
	cmd := &cobra.Command{
		Use:   "history MACHINE",
		Short: "Tell who did what to a machine, when, and how it ended",
		Long: `History tells who did what to a machine, when, and how it ended: also of one that was released or forgotten, by its ID or the last name that
it had, for as long as history is kept (janitor.keep_history).`,
		Example: `  ironherd machine history herd-0007
  ironherd machine history herd-0007 --limit 1000 -o yaml`,
		Args:              exactly,
		ValidArgsFunction: firstArgument(a.completeMachines),
	}
	cmd.Flags().Int32Var(&limit, "limit", defaultHistory, historyLimitUsage)
	timeout, output := timeoutFlag(cmd, defaultTimeout, timeoutUsage), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.history(cmd, *timeout, *output, &fleetv1.ListHistoryRequest{Machine: args[0], Limit: limit})
	}
	return cmd
}

func historyTable(w *screen, entries []*fleetv1.HistoryEntry) {
	if len(entries) == 0 {
		w.line("Nothing has happened.")
		return
	}
	rows := make([][]string, len(entries))
	for i, e := range entries {
		process := e.GetProcess()
		if e.GetEpoch() > 0 {
			process = fmt.Sprintf("%s #%d", process, e.GetEpoch())
		}
		var details []string
		if e.GetDetail() != "" {
			details = append(details, e.GetDetail())
		}
		if e.GetWhy() != "" {
			details = append(details, "it began because "+e.GetWhy())
		}
		if took := e.GetAt().AsTime().Sub(e.GetStartedAt().AsTime()); e.GetStartedAt() != nil && took > 0 {
			details = append(details, "it took "+took.Round(time.Millisecond).String())
		}
		if e.GetRetryAt() != nil {
			details = append(details, "again at "+instant(e.GetRetryAt()))
		}
		rows[i] = []string{instant(e.GetAt()), fleet.ShownActor(e.GetActor()), process, e.GetEvent(), strings.Join(details, "; ")}
	}
	w.table([]string{"WHEN", "WHO", "PROCESS", "WHAT", "DETAIL"}, rows)
}
