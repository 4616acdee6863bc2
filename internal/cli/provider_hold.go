package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shell"
)

func (a *app) providerPauseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pause PROVIDER",
		Short: "Keep new machines from being created at a provider",
		Long: `Pause keeps new machines from being created at the provider, and changes of its list from being looked for, until ironherd provider resume.
It counts at once: of a pass that is under way, only the creations that the provider has been asked for already come to their end. The
machines that are there are looked after as before.`,
		Example: `  ironherd provider pause metal --reason "the bill"
  ironherd provider pause metal --reason "the bill" -o json`,
		Args:              exactly,
		ValidArgsFunction: firstArgument(a.completeProviders),
	}
	return a.withReason(cmd, reasonUsage, func(ctx context.Context, client fleetClient, args []string, reason string) (proto.Message, string, error) {
		request := &fleetv1.PauseProviderRequest{Provider: args[0], Reason: reason}
		_, err := client.PauseProvider(ctx, request)
		return request, fmt.Sprintf("%s is paused; %s ends that", args[0], a.resumeProvider(args[0])), err
	})
}

func (a *app) providerResumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "resume PROVIDER",
		Short: "Let machines be created at a paused provider again",
		Example: `  ironherd provider resume metal --reason "paid"
  ironherd provider resume metal --reason "paid" -o json`,
		Args:              exactly,
		ValidArgsFunction: firstArgument(a.completeProviders),
	}
	return a.withReason(cmd, reasonUsage, func(ctx context.Context, client fleetClient, args []string, reason string) (proto.Message, string, error) {
		request := &fleetv1.ResumeProviderRequest{Provider: args[0], Reason: reason}
		_, err := client.ResumeProvider(ctx, request)
		return request, fmt.Sprintf("%s is not paused any more", args[0]), err
	})
}

func (a *app) providerRetryCommand() *cobra.Command {
	var reason string
	var capacities []string
	cmd := &cobra.Command{
		Use:   "retry PROVIDER",
		Short: "Try again now what waits at a provider, or let released capacity be used again",
		Long: `Retry forgets the backoffs of the provider, and the penalties of its capacity that have an end: what failed there is tried again at once, and
capacity that failed may be used again. What a released machine had stays out of use. With --capacity, exactly the capacity that is named may
be used again, also where a machine was released, and everything else stays as it is: the next pass may create a machine on it, or take the
host in again, and it is looked after as every other machine. ironherd provider show PROVIDER names what is kept out.`,
		Example: `  ironherd provider retry metal --reason "the quota was raised"
  ironherd provider retry rack --capacity node3,node4 --reason "the other team has given them back"
  ironherd provider retry metal -o json`,
		Args:              exactly,
		ValidArgsFunction: firstArgument(a.completeProviders),
	}
	cmd.Flags().StringSliceVar(&capacities, "capacity", nil, "let this capacity be used again, and do nothing else; may be given more than once")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for history (required with --capacity)")
	_ = cmd.RegisterFlagCompletionFunc("capacity", a.completeKeptOut)
	timeout, output := timeoutFlag(cmd, defaultTimeout, timeoutUsage), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		named := cmd.Flags().Changed("capacity")
		if named {
			if err := checkReason(reason); err != nil {
				return err
			}
			if len(capacities) == 0 { // this would be a retry of all
				return fleet.Errorf(fleet.KindInvalid, "--capacity must name capacity: `%s` has what is kept out", a.command("provider show "+shell.Word(args[0])))
			}
		}
		return a.ask(cmd, *timeout, func(ctx context.Context, client fleetClient) error {
			response, err := client.RetryProvider(ctx, &fleetv1.RetryProviderRequest{Provider: args[0], Reason: reason, Capacities: capacities})
			if err != nil {
				return err
			}
			ended := penalties(response.GetPenalties()) + " of capacity ended"
			return a.print(*output, response, func(w *screen) {
				if named {
					w.line("%s: %s; its next pass may use %s", args[0], ended, strings.Join(capacities, ", "))
					return
				}
				w.line("%s: %s; %s", args[0], endedBackoffs(response.GetProcesses()), ended)
				if kept := response.GetKept(); kept > 0 {
					w.line("What was released stays kept out (%d): %s uses one again, and %s names all", kept, a.retryCapacity(args[0]), a.command("provider show "+args[0]))
				}
			})
		})
	}
	return cmd
}

func (a *app) providerForgetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "forget PROVIDER",
		Short: "Remove a provider that has left the configuration",
		Long: `Forget removes a provider that no live control plane serves, with all that is known of it but its history: its discrepancies, and the penalties
of its capacity. It is refused while a live control plane works at it, and for a minute after that; and while machines of it are known. Those are
removed first with ironherd machine forget --provider PROVIDER: nothing is done to them, and they are not given back. Take the provider out of
the configuration of every control plane before: one that starts with it has it again. A provider that is configured again begins anew: a list
of hosts takes its hosts in as new machines, also where it has another name now, and does with them what it is configured for; what was bought is
a discrepancy until it is adopted. Where a provider was renamed, give it its old name again instead.`,
		Example: `  ironherd machine forget --provider oldlab --reason "the lab is closed"
  ironherd provider forget oldlab --reason "the lab is closed"
  ironherd provider forget oldlab --reason "the lab is closed" -o json`,
		Args:              exactly,
		ValidArgsFunction: firstArgument(a.completeProviders),
	}
	return a.withReason(cmd, "why, for history (required)", func(ctx context.Context, client fleetClient, args []string, reason string) (proto.Message, string, error) {
		request := &fleetv1.ForgetProviderRequest{Provider: args[0], Reason: reason}
		_, err := client.ForgetProvider(ctx, request)
		return request, fmt.Sprintf("%s is forgotten; `%s` tells what was done there", args[0], a.command("provider history "+shell.Word(args[0]))), err
	})
}

// retryCapacity is the command that lets capacity be used again.
func (a *app) retryCapacity(provider string) string {
	return a.command("provider retry " + provider + " --capacity ID --reason WHY")
}

// resumeProvider is the command that ends a pause.
func (a *app) resumeProvider(provider string) string {
	return a.command("provider resume " + provider + " --reason WHY")
}

// completeKeptOut offers the capacity of the provider that is kept out.
func (a *app) completeKeptOut(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completed(cmd, func(ctx context.Context, client fleetClient) (ids []string, err error) {
		response, err := client.ListProviders(ctx, &fleetv1.ListProvidersRequest{KeptOutOf: args[0]})
		for _, p := range response.GetProviders() {
			for _, kept := range p.GetKeptOut() {
				ids = offer(ids, typed, kept.GetCapacity(), kept.GetCause())
			}
		}
		return ids, err
	})
}

// paused says that a provider is, since when, and how that ends.
func (a *app) paused(p *fleetv1.ProviderPause) string {
	return fmt.Sprintf("%s is paused by %s since %s: %s. %s ends that.", p.GetProvider(), p.GetActor(),
		instant(p.GetAt()), strings.TrimSuffix(p.GetReason(), "."), a.resumeProvider(p.GetProvider()))
}

func penalties(n int64) string {
	if n == 1 {
		return "1 penalty"
	}
	return fmt.Sprintf("%d penalties", n)
}

// completeProviders offers the names of providers to the shell.
func (a *app) completeProviders(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	return a.completed(cmd, func(ctx context.Context, client fleetClient) (names []string, err error) {
		response, err := client.ListProviders(ctx, &fleetv1.ListProvidersRequest{})
		for _, p := range response.GetProviders() {
			names = offer(names, typed, p.GetName(), p.GetKind())
		}
		return names, err
	})
}
