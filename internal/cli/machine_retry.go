package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

func (a *app) machineRetryCommand() *cobra.Command {
	var process string
	cmd := &cobra.Command{
		Use:   "retry MACHINE...",
		Short: "Try again now what waits in backoff",
		Long: `Retry forgets the backoff of machines, so that what failed is tried again at once instead of later, unless something else holds it back:
machine explain tells that.`,
		Example: `  ironherd machine retry herd-0007
  ironherd machine retry herd-0007 herd-0008 --process agent-start
  ironherd machine retry herd-0007 -o json`,
		Args:              oneOrMore("MACHINE"),
		ValidArgsFunction: a.completeMachines,
	}
	processes := fleet.Names(fleet.MachineProcesses())
	cmd.Flags().StringVar(&process, "process", "", "only this process ("+processes+"); empty: all")
	_ = cmd.RegisterFlagCompletionFunc("process", cobra.FixedCompletions(fleet.Strings(fleet.MachineProcesses()), cobra.ShellCompDirectiveNoFileComp))
	timeout, output := timeoutFlag(cmd, defaultTimeout, timeoutUsage), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if process != "" && !slices.Contains(fleet.MachineProcesses(), fleet.Process(process)) {
			return fleet.Errorf(fleet.KindInvalid, "no process of a machine is named %q: use one of %s", process, processes)
		}
		return a.ask(cmd, *timeout, func(ctx context.Context, client fleetClient) error {
			var done retried
			failed := forEach(ctx, a, args, asTyped, func(ctx context.Context, machine string) error {
				response, err := client.RetryMachine(ctx, &fleetv1.RetryMachineRequest{Machine: machine, Process: process})
				if err != nil {
					return err
				}
				done.Machines = append(done.Machines, retriedMachine{machine, append([]string{}, response.GetProcesses()...)})
				return a.sayOne(*output, "%s: %s", machine, endedBackoffs(response.GetProcesses()))
			})
			if len(done.Machines) == 0 {
				return failed
			}
			return cmp.Or(a.inFull(*output, done), failed)
		})
	}
	return cmd
}

// retried is what machine retry prints.
type retried struct {
	Machines []retriedMachine `yaml:"machines"`
}

type retriedMachine struct {
	Machine string `yaml:"machine"`
	// Processes whose backoff was forgotten.
	Processes []string `yaml:"processes"`
}

// endedBackoffs says what does not wait in backoff any more. Something else may hold it back.
func endedBackoffs(processes []string) string {
	if len(processes) == 0 {
		return "nothing was waiting in backoff"
	}
	return strings.Join(processes, ", ") + " does not wait in backoff any more"
}
