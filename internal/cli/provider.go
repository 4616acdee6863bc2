package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

func (a *app) providerCommand() *cobra.Command {
	return group("provider", "Look at where machines come from, and stop what is created there",
		a.providerListCommand(), a.providerShowCommand(), a.providerHistoryCommand(), a.providerPauseCommand(), a.providerResumeCommand(), a.providerRetryCommand(),
		a.providerForgetCommand())
}

func (a *app) providerShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "show NAME",
		Short:             "Show a provider: how its last pass went, which entries of its list are left alone, and what capacity is not used, and why",
		Example:           `  ironherd provider show rack`,
		Args:              exactly,
		ValidArgsFunction: firstArgument(a.completeProviders),
	}
	return question(a, cmd, func(ctx context.Context, client fleetClient, args []string) (*fleetv1.Provider, error) {
		response, err := client.ListProviders(ctx, &fleetv1.ListProvidersRequest{KeptOutOf: args[0]})
		if err != nil {
			return nil, err
		}
		var names []string
		for _, p := range response.GetProviders() {
			if p.GetName() == args[0] {
				return p, nil
			}
			names = append(names, p.GetName())
		}
		if len(names) == 0 {
			return nil, fleet.Errorf(fleet.KindNotFound, "there is no provider %q: none is configured", args[0])
		}
		return nil, fleet.Errorf(fleet.KindNotFound, "there is no provider %q: use one of %s", args[0], strings.Join(names, ", "))
	}, a.showProvider)
}

func (a *app) showProvider(w *screen, p *fleetv1.Provider) {
	w.pairs(
		[2]string{"Name", p.GetName()},
		[2]string{"Kind", p.GetKind()},
		[2]string{"Machines", fmt.Sprint(p.GetMachines())},
		[2]string{"Maximum", maximumOf(p)},
		[2]string{"Intents", fmt.Sprint(p.GetOpenIntents())},
		[2]string{"Discrepancies", fleet.Counted(p.GetDiscrepancies())},
		[2]string{"Penalties", fmt.Sprint(p.GetPenalties())},
		[2]string{"Paused", pausedBy(p)},
		[2]string{"Unserved", unservedAs(p)},
		[2]string{"Calls", p.GetPacing()},
		[2]string{"Last pass", begunAnd(p.GetLastPassAt(), a.asked(p.GetLastPass()))},
		[2]string{"Last update", begunAnd(p.GetLastUpdateAt(), a.asked(p.GetLastUpdate()))},
	)
	if len(p.GetUnusable()) > 0 {
		w.line("")
		w.line("Left alone:")
	}
	for _, reason := range p.GetUnusable() {
		w.line("  %s", a.asked(reason))
	}
	a.showKeptOut(w, p)
}

// showKeptOut shows the capacity that is not used, and how it is used again.
func (a *app) showKeptOut(w *screen, p *fleetv1.Provider) {
	all := p.GetKeptOut()
	if len(all) == 0 {
		return
	}
	const shown = 100
	w.line("")
	w.line("Kept out; %s uses one again:", a.retryCapacity(p.GetName()))
	rows := make([][]string, min(len(all), shown))
	for i := range rows {
		rows[i] = []string{all[i].GetCapacity(), cmp.Or(instant(all[i].GetUntil()), "it is named"), all[i].GetCause()}
	}
	w.table([]string{"CAPACITY", "UNTIL", "WHY"}, rows)
	if rest := p.GetPenalties() - int64(len(rows)); rest > 0 {
		w.line("and %d more, which -o json has", rest)
	}
}

// begunAnd says when the last pass had begun that has finished, and what is told of it or since.
func begunAnd(at *timestamppb.Timestamp, what string) string {
	if at == nil {
		return what
	}
	return "begun " + age(at) + " ago; " + what
}

func maximumOf(p *fleetv1.Provider) string {
	if p.GetMaxMachines() > 0 {
		return fmt.Sprint(p.GetMaxMachines())
	}
	return "no limit"
}

func (a *app) providerListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List providers and how their last passes went",
		Example: `  ironherd provider list`,
		Args:    exactly,
	}
	return question(a, cmd, func(ctx context.Context, client fleetClient, _ []string) (*fleetv1.ListProvidersResponse, error) {
		return client.ListProviders(ctx, &fleetv1.ListProvidersRequest{})
	}, func(w *screen, r *fleetv1.ListProvidersResponse) { providerTable(w, r.GetProviders()) })
}

// lastPass says how the last pass went, and that there are none while the provider is paused.
func lastPass(p *fleetv1.Provider) string {
	if nobody := unservedAs(p); nobody != "" {
		return "no live control plane serves it as " + nobody
	}
	if by := pausedBy(p); by != "" {
		return "paused by " + by
	}
	return p.GetLastPass()
}

// unservedAs names the roles that nobody has for the provider, though somebody has them for others.
func unservedAs(p *fleetv1.Provider) string { return strings.Join(p.GetUnserved(), ", ") }

// pausedBy says who has paused the provider, since when, and why; "" when nobody has.
func pausedBy(p *fleetv1.Provider) string {
	if p.GetPausedAt() == nil {
		return ""
	}
	return p.GetPausedBy() + " since " + instant(p.GetPausedAt()) + ": " + p.GetPausedWhy()
}

func providerTable(w *screen, providers []*fleetv1.Provider) {
	if len(providers) == 0 {
		w.line("No providers are configured.")
		return
	}
	rows := make([][]string, len(providers))
	for i, p := range providers {
		rows[i] = []string{
			p.GetName(), p.GetKind(), fmt.Sprint(p.GetMachines()), maximumOf(p), fmt.Sprint(p.GetOpenIntents()),
			fleet.Counted(p.GetDiscrepancies()), fmt.Sprint(p.GetPenalties()), age(p.GetLastPassAt()), lastPass(p),
		}
	}
	w.table([]string{"NAME", "KIND", "MACHINES", "MAXIMUM", "INTENTS", "DISCREPANCIES", "PENALTIES", "LAST PASS", "RESULT"}, rows)
}
