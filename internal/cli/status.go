package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

func (a *app) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say how the fleet is, and what needs a look",
		Long: `Status says how many machines are in which state, what somebody should look at, and what work is under way, due, or waits after a
failure. It is the page's overview in a terminal.`,
		Example: `  ironherd status
  ironherd status -o json | jq '.concerns[].text'`,
		Args: exactly,
	}
	return question(a, cmd, getSummary, a.showStatus)
}

func getSummary(ctx context.Context, client fleetClient, _ []string) (*fleetv1.GetSummaryResponse, error) {
	return client.GetSummary(ctx, &fleetv1.GetSummaryRequest{})
}

func (a *app) showStatus(w *screen, s *fleetv1.GetSummaryResponse) {
	var states []string
	for _, c := range s.GetStates() {
		if c.GetMachines() > 0 {
			states = append(states, fmt.Sprintf("%d %s", c.GetMachines(), c.GetState()))
		}
	}
	if len(states) == 0 {
		w.line("There are no machines.")
	} else {
		w.line("%s: %s.", plural(int(s.GetMachines()), "machine"), strings.Join(states, ", "))
	}
	if h := s.GetRecoveryHold(); h != nil {
		w.line("%s", a.stopped(h))
	}
	for _, p := range s.GetPausedProviders() {
		w.line("%s", a.paused(p))
	}
	if len(s.GetConcerns()) > 0 {
		w.line("Needs a look:")
		for _, c := range s.GetConcerns() {
			w.line("  %s", a.asked(c.GetText()))
		}
	} else if s.GetRecoveryHold() == nil && s.GetMachines() > 0 {
		w.line("%s", allWell(s))
	}
	var rows [][]string
	for _, p := range s.GetProcesses() {
		if p.GetRunning()+p.GetDue()+p.GetBackingOff() > 0 {
			rows = append(rows, []string{p.GetProcess(), fmt.Sprint(p.GetRunning()), fleet.Counted(p.GetDue()), fleet.Counted(p.GetBackingOff())})
		}
	}
	if len(rows) > 0 {
		w.line("")
		w.table([]string{"PROCESS", "RUNNING", "DUE", "BACKING OFF"}, rows)
	}
}

// allWell says that nothing needs a look. What a person has paused is told before.
func allWell(s *fleetv1.GetSummaryResponse) string {
	if len(s.GetPausedProviders()) > 0 {
		return "Nothing else needs you."
	}
	return "Nothing needs you."
}
