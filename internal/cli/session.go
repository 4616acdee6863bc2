package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

func (a *app) sessionCommand() *cobra.Command {
	return group("session", "Look at the components that are alive, and what they hold", a.sessionListCommand())
}

func (a *app) sessionListCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List sessions and what they hold",
		Long: `A session is the sign of life of one role of one control plane. COMPONENT is its name where history says who did something: a loop's is that of
its process. The roles agent-api and operator-api have no session.`,
		Example: `  ironherd session list
  ironherd session list --all`,
		Args: exactly,
	}
	cmd.Flags().BoolVar(&all, "all", false, "also show sessions that have ended and are still remembered")
	return question(a, cmd, func(ctx context.Context, client fleetClient, _ []string) (*fleetv1.ListSessionsResponse, error) {
		return client.ListSessions(ctx, &fleetv1.ListSessionsRequest{All: all})
	}, func(w *screen, r *fleetv1.ListSessionsResponse) { sessionTable(w, r.GetSessions()) })
}

// holdsShown is how many of a session's holds a table names.
const holdsShown = 3

func sessionTable(w *screen, sessions []*fleetv1.Session) {
	if len(sessions) == 0 {
		w.line("No sessions.")
		return
	}
	rows := make([][]string, len(sessions))
	for i, s := range sessions {
		ends := due(s.GetDeadline())
		if s.GetEndedAt() != nil {
			ends = strings.TrimSuffix("ended "+age(s.GetEndedAt())+" ago: "+s.GetEndCause(), ": ")
		}
		rows[i] = []string{
			s.GetRole(), s.GetComponent(), s.GetHost(), fmt.Sprint(s.GetPid()), serves(s.GetProviders()), age(s.GetStartedAt()), ends, holds(s.GetHolds()), s.GetId(),
		}
	}
	w.table([]string{"ROLE", "COMPONENT", "HOST", "PID", "PROVIDERS", "AGE", "DEADLINE", "HOLDS", "ID"}, rows)
}

// serves names the providers that a session serves, the first few of many.
func serves(providers []string) string {
	const shown = 3
	if rest := len(providers) - shown; rest > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(providers[:shown], " "), rest)
	}
	return strings.Join(providers, " ")
}

func holds(all []*fleetv1.Hold) string {
	var parts []string
	for i, h := range all {
		if i == holdsShown {
			parts = append(parts, fmt.Sprintf("and %d more", len(all)-i))
			break
		}
		parts = append(parts, fmt.Sprintf("%s #%d", h.GetSubject(), h.GetEpoch()))
	}
	return strings.Join(parts, ", ")
}
