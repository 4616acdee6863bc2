package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

func (a *app) machineListCommand() *cobra.Command {
	var providerName string
	var states []string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List machines and what state they are in",
		Example: `  ironherd machine list
  ironherd machine list --state silent --state failed
  ironherd machine list --provider metal -o json`,
		Args: exactly,
	}
	cmd.Flags().StringVar(&providerName, "provider", "", "only machines of this provider")
	cmd.Flags().StringSliceVar(&states, "state", nil, "only machines in this state; may be given more than once")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(stateNames(), cobra.ShellCompDirectiveNoFileComp))
	timeout, output := timeoutFlag(cmd, defaultTimeout, timeoutUsage), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkStates(states); err != nil {
			return err
		}
		return a.ask(cmd, *timeout, func(ctx context.Context, client fleetClient) error {
			all, err := listMachines(ctx, client, providerName, states)
			if err != nil {
				return err
			}
			return a.print(*output, &fleetv1.ListMachinesResponse{Machines: all}, func(w *screen) { machineTable(w, all) })
		})
	}
	return cmd
}

// listMachines returns the machines of all pages.
func listMachines(ctx context.Context, client fleetClient, providerName string, states []string) (all []*fleetv1.Machine, err error) {
	request := &fleetv1.ListMachinesRequest{Provider: providerName, States: states, PageSize: 1000}
	err = eachPage(ctx, client, request, func(page []*fleetv1.Machine) bool {
		all = append(all, page...)
		return true
	})
	return all, err
}

// eachPage asks for page after page, until there is none or no more are wanted.
func eachPage(ctx context.Context, client fleetClient, request *fleetv1.ListMachinesRequest, take func([]*fleetv1.Machine) (more bool)) error {
	for {
		response, err := client.ListMachines(ctx, request)
		if err != nil {
			return err
		}
		next := response.GetNextPageToken()
		if !take(response.GetMachines()) || next == "" {
			return nil
		}
		if next == request.GetPageToken() {
			return fmt.Errorf("the control plane gave the same page of machines twice")
		}
		request.PageToken = next
	}
}

func machineTable(w *screen, machines []*fleetv1.Machine) {
	if len(machines) == 0 {
		w.line("No machines.")
		return
	}
	rows := make([][]string, len(machines))
	for i, m := range machines {
		rows[i] = []string{
			m.GetHostname(), m.GetState(), age(m.GetStateSince()), m.GetAddress(), m.GetLocation(), m.GetProvider(),
			age(m.GetLastSeenAt()), m.GetId(),
		}
	}
	w.table([]string{"HOSTNAME", "STATE", "SINCE", "ADDRESS", "LOCATION", "PROVIDER", "SEEN", "ID"}, rows)
}

func checkStates(states []string) error {
	for _, s := range states {
		if !slices.Contains(fleet.States(), fleet.State(s)) {
			return fleet.Errorf(fleet.KindInvalid, "no state is named %q: use %s", s, strings.Join(stateNames(), ", "))
		}
	}
	return nil
}

func stateNames() []string {
	all := make([]string, 0, len(fleet.States()))
	for _, s := range fleet.States() {
		all = append(all, string(s))
	}
	return all
}
