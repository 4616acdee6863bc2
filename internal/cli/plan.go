package cli

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/shell"
)

func (a *app) planCommand() *cobra.Command {
	return group("plan", "Look at what was planned for machines, and have it done", a.planShowCommand(), a.planConfirmCommand())
}

func (a *app) planShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show PLAN",
		Short: "Show what a plan does to which machines, and what that destroys",
		Long: `Show shows a plan as it was made. What became of its machines is in their histories, which name the plan. A plan is kept for a while
after it expired (janitor.keep_plans, a week).`,
		Example:           `  ironherd plan show k3j2m9x4qp`,
		Args:              exactly,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	return question(a, cmd, func(ctx context.Context, client fleetClient, args []string) (*fleetv1.Plan, error) {
		response, err := client.GetPlan(ctx, &fleetv1.GetPlanRequest{Id: args[0]})
		return response.GetPlan(), err
	}, func(w *screen, plan *fleetv1.Plan) {
		a.showPlan(w, plan)
		if words := a.toConfirm(plan); words != "" {
			w.line("")
			w.line("%s", words)
		}
	})
}

// toConfirm says what confirming the plan does now; "": nothing, and nothing is to be said of that.
// An older control plane does not tell whether the time for it is over.
func (a *app) toConfirm(plan *fleetv1.Plan) string {
	over := plan.Confirmable != nil && !plan.GetConfirmable()
	switch {
	case plan.GetConfirmedAt() == nil && over:
		return fmt.Sprintf("It expired at %s: make it anew.", instant(plan.GetExpiresAt()))
	case plan.GetConfirmedAt() == nil:
		return fmt.Sprintf("It can be confirmed until %s: %s", instant(plan.GetExpiresAt()), a.confirm(plan))
	case plan.GetConfirmable():
		return fmt.Sprintf("Where confirming it was interrupted, this goes on, and repeats nothing: %s", a.confirm(plan))
	}
	return ""
}

// confirm is the command that has a plan carried out.
func (a *app) confirm(plan *fleetv1.Plan) string { return a.command("plan confirm " + plan.GetId()) }

// command is a command line to be pasted, for the control plane that this command was told to ask:
// what it is about is nothing to another one.
func (a *app) command(words string) string {
	return a.commandWith(words, "server", "config", "token-file", "ca-file")
}

// commandWith is a command line with those flags of this one that name something.
func (a *app) commandWith(words string, names ...string) string {
	values := map[string]string{"server": a.server, "config": a.configFile, "token-file": a.tokenFile, "ca-file": a.caFile}
	for _, name := range names {
		if values[name] != "" {
			words += " --" + name + " " + shell.Word(values[name])
		}
	}
	return "ironherd " + words
}

// quoted is a command within a sentence of the control plane.
var quoted = regexp.MustCompile("`(ironherd [^`]+)`")

// asked is a sentence of the control plane, whose commands get the flags that they need here.
func (a *app) asked(sentence string) string {
	return quoted.ReplaceAllStringFunc(sentence, func(command string) string { return "`" + a.told(strings.Trim(command, "`")) + "`" })
}

// told is a command that the control plane tells, which does not know how it was reached. What asks
// it gets the flags for that, and what runs on its host the configuration. `ironherd serve` gets
// none: a control plane that is missing has a configuration of its own.
func (a *app) told(command string) string {
	words := strings.TrimPrefix(command, "ironherd ")
	switch noun, _, _ := strings.Cut(words, " "); noun {
	case "machine", "provider", "discrepancy", "recovery", "session", "plan", "status":
		return a.command(words)
	case "db", "token":
		return a.commandWith(words, "config")
	}
	return command
}

func (a *app) planConfirmCommand() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "confirm PLAN",
		Short: "Have a plan carried out",
		Long: `Confirm has a plan carried out, machine by machine. A machine that is not any more what the plan was made for (its state, its installs, what
was asked for), or does not fit the selector any more, is skipped, and told. A plan can be confirmed for ten minutes. Where confirming was
interrupted, confirm it again within an hour: it goes on where it stopped, and repeats nothing.`,
		Example: `  ironherd plan confirm k3j2m9x4qp
  ironherd plan confirm k3j2m9x4qp --wait`,
		Args:              exactly,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until it is done, or has failed; for what a provider does, and for installs")
	timeout, output := timeoutFlag(cmd, 0, timeoutUsage+" (default: 110s without --wait, no limit with it)"), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		limit := *timeout
		if limit == 0 && !wait {
			limit = confirmTimeout
		}
		return a.ask(cmd, limit, func(ctx context.Context, client fleetClient) error {
			bounded, cancel := withTimeout(ctx, cmp.Or(limit, confirmTimeout))
			defer cancel()
			response, err := client.ConfirmPlan(bounded, &fleetv1.ConfirmPlanRequest{Id: args[0]})
			if err != nil {
				return err
			}
			plan := response.GetPlan()
			if err := a.print(*output, plan, func(w *screen) { a.showPlan(w, plan) }); err != nil {
				return err
			}
			return a.afterPlan(ctx, client, plan, wait)
		})
	}
	return cmd
}
