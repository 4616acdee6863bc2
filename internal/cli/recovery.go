package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

func (a *app) recoveryCommand() *cobra.Command {
	return group("recovery", "Look at recovery, and stop it", a.recoveryStatusCommand(), a.recoveryPauseCommand(), a.recoveryResumeCommand())
}

func (a *app) recoveryStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say whether recovery runs, and on how many machines",
		Long: `Status says whether recovery is stopped, by whom, why and until when, or what else it waits for; what to check while it is stopped because so
many machines are silent at once; how many machines are silent or in quarantine; and on how many recovery is at work, or due.`,
		Example: `  ironherd recovery status`,
		Args:    exactly,
	}
	return question(a, cmd, getSummary, a.showRecovery)
}

func (a *app) showRecovery(w *screen, s *fleetv1.GetSummaryResponse) {
	if h := s.GetRecoveryHold(); h != nil {
		w.line("%s", a.stopped(h))
		for _, suspect := range h.GetSuspects() {
			w.line("  check %s", suspect)
		}
	} else {
		a.showWaiting(w, s.GetConcerns())
	}
	count := func(state fleet.State) int {
		for _, c := range s.GetStates() {
			if c.GetState() == string(state) {
				return int(c.GetMachines())
			}
		}
		return 0
	}
	w.line("%s silent, %d in quarantine, of %d.", plural(count(fleet.StateSilent), "machine"), count(fleet.StateQuarantined), s.GetMachines())
	for _, p := range s.GetProcesses() {
		if p.GetProcess() == string(fleet.ProcessRecovery) {
			w.line("Recovery is at work on %d, due on %s, and backs off on %s.", p.GetRunning(), fleet.Counted(p.GetDue()), fleet.Counted(p.GetBackingOff()))
			if n := p.GetNoRoom(); n > 0 {
				more := ""
				if p.GetDue() >= fleet.CountedAtMost { // what is due beyond that may have no room, either
					more = "+"
				}
				w.line("For %d%s of those on which it is due there is no room until fewer of their provider or location are under recovery (policy.recovery_at_once, recovery_at_once_per_location).", n, more)
			}
		}
	}
}

// showWaiting says what recovery waits for though nobody has stopped it, and what keeps silence
// from counting. What a probe has not found, or what has never answered, does not wait for that.
func (a *app) showWaiting(w *screen, concerns []*fleetv1.Concern) {
	runs := true
	for _, c := range concerns {
		switch kind := fleet.ConcernKind(c.GetKind()); {
		case kind == fleet.ConcernDatabase, kind == fleet.ConcernRestored, kind == fleet.ConcernRole && c.GetSubject() == string(fleet.RoleRecoverer):
			w.line("Recovery waits: %s.", a.asked(c.GetText()))
			runs = false
		case kind == fleet.ConcernListener:
			w.line("No silence of an agent counts: %s.", a.asked(c.GetText()))
		}
	}
	if runs {
		w.line("Recovery runs.")
	}
}

// stopped says who has stopped recovery, why, until when, and what ends it.
func (a *app) stopped(h *fleetv1.RecoveryHold) string {
	since, before := instant(h.GetAt()), ""
	if h.GetUntil() != nil {
		since, before = since+", until "+instant(h.GetUntil()), " before"
	}
	text := fmt.Sprintf("Recovery is stopped by %s since %s: %s.", fleet.ShownActor(h.GetActor()), since, h.GetReason())
	if fleet.ResumableStop(fleet.StopCause(h.GetCause()), h.GetActor(), len(h.GetSuspects())) {
		text += fmt.Sprintf(" %s ends that%s.", a.command("recovery resume"), before)
	}
	return text
}

func (a *app) recoveryPauseCommand() *cobra.Command {
	var reason, at string
	var lasts time.Duration
	cmd := &cobra.Command{
		Use:   "pause",
		Short: "Stop it: nothing is rebooted, power-cycled or reinstalled by recovery",
		Long: `Pause stops recovery for the whole fleet: no machine is rebooted, power-cycled, reinstalled or quarantined by it. Agents are started as
before, and what people ask for is done. It ends by itself with --for or --until, else with ironherd recovery resume. During another person's
stop it is refused unless it lasts longer; then it takes the place of that, and ironherd recovery resume ends both.`,
		Example: `  ironherd recovery pause --for 1h --reason "the switch of rack 4 is replaced"
  ironherd recovery pause --reason "the switch of rack 4 is replaced" -o json`,
		Args: exactly,
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for everybody who asks (required)")
	cmd.Flags().DurationVar(&lasts, "for", 0, "how long, such as 2h; it goes on by itself then")
	cmd.Flags().StringVar(&at, "until", "", "when it goes on by itself, such as 2026-11-22T18:00:00Z")
	timeout, output := timeoutFlag(cmd, defaultTimeout, timeoutUsage), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkReason(reason); err != nil {
			return err
		}
		end, err := endOf(cmd, lasts, at)
		if err != nil {
			return err
		}
		return a.ask(cmd, *timeout, func(ctx context.Context, client fleetClient) error {
			request := &fleetv1.PauseRecoveryRequest{Reason: reason, Until: end.until, Lasts: end.lasts}
			response, err := client.PauseRecovery(ctx, request)
			if err != nil {
				return err
			}
			if response.GetUntil() != nil { // an older control plane does not tell
				request.Until = response.GetUntil()
			}
			others := ""
			if told := response.GetReason(); told != "" && told != reason {
				request.Reason, others = told, ": "+told
			}
			if request.GetUntil() != nil {
				return a.say(*output, request, "Recovery is stopped until %s%s; %s ends that before", instant(request.GetUntil()), others, a.command("recovery resume"))
			}
			return a.say(*output, request, "Recovery is stopped%s; %s ends that", others, a.command("recovery resume"))
		})
	}
	return cmd
}

func (a *app) recoveryResumeCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "resume",
		Short: "Let recovery go on",
		Long: `Resume ends the stop of recovery, also another person's, which it names then, and the one that was made because so many
machines were silent at once. One that was made because policy.recovery_per_hour is spent ends by itself; with a higher limit, resume ends it, too.`,
		Example: `  ironherd recovery resume --reason "the listener is back"
  ironherd recovery resume --reason "the listener is back" -o json`,
		Args: exactly,
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the history of the providers")
	timeout, output := timeoutFlag(cmd, defaultTimeout, timeoutUsage), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.ask(cmd, *timeout, func(ctx context.Context, client fleetClient) error {
			request := &fleetv1.ResumeRecoveryRequest{Reason: reason}
			response, err := client.ResumeRecovery(ctx, request)
			if err != nil {
				return err
			}
			if ended := response.GetEnded(); ended != "" {
				a.note("That ended the stop by %s.", ended)
			}
			return a.say(*output, request, "Recovery goes on")
		})
	}
	return cmd
}
