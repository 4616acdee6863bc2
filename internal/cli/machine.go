package cli

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

func (a *app) machineCommand() *cobra.Command {
	return group("machine", "Look at machines, and say what is wanted of them",
		a.machineListCommand(), a.machineShowCommand(), a.machineHistoryCommand(), a.machineExplainCommand(),
		a.machineInstallCommand(), a.machineRetryCommand(), a.machineHostKeyCommand(), a.machineRebootCommand(), a.machinePowerCommand(),
		a.machineQuarantineCommand(), a.machineUnquarantineCommand(), a.machineMaintenanceCommand(), a.machineReleaseCommand(),
		a.machineReplaceCommand(), a.machineMarkInstalledCommand(), a.machineForgetCommand(), a.machineWithdrawCommand())
}

// defaultTimeout is how long a question to the control plane may take.
const defaultTimeout = 30 * time.Second

// ask runs a command against the control plane, within --timeout.
func (a *app) ask(cmd *cobra.Command, timeout time.Duration, run func(ctx context.Context, client fleetClient) error) error {
	if timeout < 0 {
		return fleet.Errorf(fleet.KindInvalid, "--timeout must not be negative, not %s", timeout)
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	ctx, cancel := withTimeout(cmd.Context(), timeout)
	defer cancel()
	return run(ctx, client)
}

// question completes a command that asks for one thing, and shows it.
func question[R any](a *app, cmd *cobra.Command, get func(ctx context.Context, client fleetClient, args []string) (R, error), show func(*screen, R)) *cobra.Command {
	timeout, output := timeoutFlag(cmd, defaultTimeout, timeoutUsage), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.ask(cmd, *timeout, func(ctx context.Context, client fleetClient) error {
			answer, err := get(ctx, client, args)
			if err != nil {
				return err
			}
			return a.print(*output, answer, func(w *screen) { show(w, answer) })
		})
	}
	return cmd
}

// bounds returns how long a command may take whose requests are as many as it finds machines, and
// how long each of its requests: one of them is bounded, the whole where --timeout was given.
func bounds(cmd *cobra.Command, limit time.Duration) (whole, each time.Duration) {
	if cmd.Flags().Changed("timeout") {
		return limit, 0
	}
	return 0, limit
}

// timeoutFlag adds --timeout to a command.
func timeoutFlag(cmd *cobra.Command, value time.Duration, usage string) *time.Duration {
	return cmd.Flags().Duration("timeout", value, usage)
}

const timeoutUsage = "give up after this long"

// forEach does the same to several machines, one after the other, and prints failures under their
// names. Its failure is that of many.
func forEach[T any](ctx context.Context, a *app, machines []T, name func(machine T) string, do func(ctx context.Context, machine T) error) error {
	var failures []error
	for _, machine := range machines {
		err := do(ctx, machine)
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return err
		}
		failures = append(failures, err)
		if len(machines) > 1 {
			a.note("%s: %s", name(machine), message(err))
		}
	}
	return ofMany(failures, len(machines))
}

// ofMany is the failure of a command for so many machines, of which these failed: nil when none
// did, that of a single machine, the first one when all did, and partly when only some did.
func ofMany(failures []error, machines int) error {
	switch {
	case len(failures) == 0:
		return nil
	case machines == 1:
		return failures[0]
	case len(failures) == machines:
		return allFailed{failures[0]}
	}
	return partly{errSilent}
}

// afterWaiting is the failure of a command that waited for the machines for which it could ask.
// missed is that of the others, which has been printed unless ctx ended meanwhile. err is that of
// waiting. It may still have to be told: await leaves that to its caller for a single machine.
func afterWaiting(ctx context.Context, missed, err error) error {
	switch {
	case err == nil:
		return missed
	case missed == nil || ctx.Err() != nil:
		return err
	}
	return partly{err}
}

// asTyped is the name of a machine that somebody has typed.
func asTyped(machine string) string { return machine }

// allFailed has the kind of the first failure. All of them have been printed.
type allFailed struct{ first error }

func (e allFailed) Error() string { return e.first.Error() }

func (e allFailed) Unwrap() []error { return []error{errSilent, e.first} }

// offered is how many names are offered at once: nobody reads more.
const offered = 1000

// completeMachines offers to the shell the names of machines that begin with what was typed.
func (a *app) completeMachines(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	return a.completed(cmd, func(ctx context.Context, client fleetClient) (names []string, err error) {
		err = eachPage(ctx, client, 0, &fleetv1.ListMachinesRequest{PageSize: pageSize}, func(page []*fleetv1.Machine) (more bool) {
			for _, m := range page {
				names = offer(names, typed, machineName(m), m.GetState())
			}
			return len(names) < offered
		})
		return names, err
	})
}

// completed is what the control plane has to offer to the shell. In the time that a person waits,
// it may not come to the end of a large fleet; what it has found by then is offered.
func (a *app) completed(cmd *cobra.Command, find func(ctx context.Context, client fleetClient) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	var names []string
	err := a.ask(cmd, 2*time.Second, func(ctx context.Context, client fleetClient) (err error) {
		names, err = find(ctx, client)
		return err
	})
	if err != nil && len(names) == 0 && !errors.Is(err, context.Canceled) {
		cobra.CompDebugln(err.Error(), false)
		return nil, cobra.ShellCompDirectiveError
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// offer adds a name that begins with what was typed, and what it is, to what the shell is offered.
// It leaves out a name that could control the terminal, or that the shell would take for two.
func offer(names []string, typed, name, what string) []string {
	if !strings.HasPrefix(name, typed) || clean(name) != name {
		return names
	}
	if what != "" {
		name += "\t" + clean(what)
	}
	return append(names, name)
}

// firstArgument completes the first argument of a command alone.
func firstArgument(complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, typed)
	}
}

// machineName returns the host name, else the ID: whichever is easiest to type.
func machineName(m *fleetv1.Machine) string { return cmp.Or(m.GetHostname(), m.GetId()) }
