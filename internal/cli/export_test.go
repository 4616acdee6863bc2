package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Commands returns every command as it is typed after "ironherd", the root as "".
func Commands() []string {
	var names []string
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		names = append(names, strings.TrimSpace(strings.TrimPrefix(c.CommandPath(), "ironherd")))
		for _, child := range c.Commands() {
			walk(child)
		}
	}
	walk((&app{}).root())
	return names
}

// Parse returns why a command line, without the program's name, is refused before its command is
// called, or because it lacks a flag that the help calls required; nil: it is accepted.
func Parse(args []string) error {
	cmd, rest, err := (&app{}).root().Find(args)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		return err
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if strings.HasSuffix(f.Usage, "(required)") && !f.Changed && !cmd.Flags().Changed("help") {
			err = fmt.Errorf("--%s is missing", f.Name)
		}
	})
	return err
}

// ListJSON does what `machine list -o json` does with these arguments behind it, over a client.
func ListJSON(ctx context.Context, client fleetClient, out io.Writer, args ...string) error {
	a := &app{env: Env{Stdout: out}}
	cmd := a.machineListCommand()
	cmd.SetContext(ctx)
	if err := cmd.ParseFlags(args); err != nil {
		return err
	}
	limit, err := cmd.Flags().GetDuration("timeout")
	if err != nil {
		return err
	}
	whole, each := bounds(cmd, limit)
	ctx, cancel := withTimeout(ctx, whole)
	defer cancel()
	return a.listPages(ctx, client, formatJSON, selector{}, each)
}

// Asked is what a command that was given this --config shows of a sentence of the control plane.
func Asked(config, sentence string) string { return (&app{configFile: config}).asked(sentence) }
