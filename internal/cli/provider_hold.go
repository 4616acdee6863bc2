package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

func (a *app) providerPauseCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "pause PROVIDER",
		Short: "Keep new machines from being created at a provider",
		Long: `Pause keeps new machines from being created at the provider, and changes of its list from being looked for, until ironherd provider resume.
It counts at once: of a pass that is under way, only the creations that the provider has been asked for already come to their end. The
machines that are there are looked after as before.`,
		Example:           `  ironherd provider pause metal --reason "the bill"`,
		Args:              exactly,
		ValidArgsFunction: a.completeProvider,
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for history and everybody who asks (required)")
	timeout := timeoutFlag(cmd, defaultTimeout, timeoutUsage)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkReason(reason); err != nil {
			return err
		}
		return a.ask(cmd, *timeout, func(ctx context.Context, client fleetClient) error {
			_, err := client.PauseProvider(ctx, &fleetv1.PauseProviderRequest{Provider: args[0], Reason: reason})
			if err == nil {
				a.note("%s is paused; ironherd provider resume %s ends that", args[0], args[0])
			}
			return err
		})
	}
	return cmd
}

func (a *app) providerResumeCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:               "resume PROVIDER",
		Short:             "Let machines be created at a paused provider again",
		Example:           `  ironherd provider resume metal --reason "paid"`,
		Args:              exactly,
		ValidArgsFunction: a.completeProvider,
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for history and everybody who asks (required)")
	timeout := timeoutFlag(cmd, defaultTimeout, timeoutUsage)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkReason(reason); err != nil {
			return err
		}
		return a.ask(cmd, *timeout, func(ctx context.Context, client fleetClient) error {
			_, err := client.ResumeProvider(ctx, &fleetv1.ResumeProviderRequest{Provider: args[0], Reason: reason})
			if err == nil {
				a.note("%s is not paused any more", args[0])
			}
			return err
		})
	}
	return cmd
}

func (a *app) providerRetryCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "retry PROVIDER",
		Short: "Try again now what waits at a provider",
		Long: `Retry forgets the backoffs of the provider, and the penalties of its capacity: what failed there is tried again at once, and capacity that
failed, or that a released machine had, may be used again.`,
		Example:           `  ironherd provider retry metal --reason "the quota was raised"`,
		Args:              exactly,
		ValidArgsFunction: a.completeProvider,
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for history")
	timeout := timeoutFlag(cmd, defaultTimeout, timeoutUsage)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.ask(cmd, *timeout, func(ctx context.Context, client fleetClient) error {
			response, err := client.RetryProvider(ctx, &fleetv1.RetryProviderRequest{Provider: args[0], Reason: reason})
			if err == nil {
				a.note("%s: %s; %s of capacity ended", args[0], endedBackoffs(response.GetProcesses()), penalties(response.GetPenalties()))
			}
			return err
		})
	}
	return cmd
}

// paused says that a provider is, since when, and how that ends.
func paused(p *fleetv1.ProviderPause) string {
	return fmt.Sprintf("%s is paused by %s since %s: %s. ironherd provider resume %s ends that.", p.GetProvider(), p.GetActor(),
		instant(p.GetAt()), strings.TrimSuffix(p.GetReason(), "."), p.GetProvider())
}

func penalties(n int64) string {
	if n == 1 {
		return "1 penalty"
	}
	return fmt.Sprintf("%d penalties", n)
}

// completeProviders offers the names of providers to the shell.
func (a *app) completeProviders(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	var names []string
	err := a.ask(cmd, 2*time.Second, func(ctx context.Context, client fleetClient) error {
		response, err := client.ListProviders(ctx, &fleetv1.ListProvidersRequest{})
		for _, p := range response.GetProviders() {
			names = offer(names, typed, p.GetName(), p.GetKind())
		}
		return err
	})
	if err != nil {
		cobra.CompDebugln(err.Error(), false)
		return nil, cobra.ShellCompDirectiveError
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeProvider completes the one argument of a command that takes one provider.
func (a *app) completeProvider(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeProviders(cmd, args, typed)
}
