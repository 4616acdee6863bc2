package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Env is everything that a run of the program gets from outside.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// StdoutTerminal and StderrTerminal say whether a person is looking.
	StdoutTerminal, StderrTerminal bool
	// StderrSize returns the columns and lines of that terminal; nil, or zeros: not known.
	StderrSize func() (columns, lines int)
	// Environ is the environment, as os.Environ returns it.
	Environ []string
	// Executable is the path of this program; the agent's is looked for beside it.
	Executable string
	// Version of this program.
	Version string
	// Notify tells whoever started the program as a service what has become of it, in the words of
	// sd_notify(3); nil: nobody did. They want a sign of life within Watchdog; zero: they do not.
	Notify   func(state string) error
	Watchdog time.Duration
}

// Main runs one command line (without the program's name) and returns the exit code. When ctx ends,
// the command ends early with 130, except serve, sim and demo: they run until they are told to
// stop, and end with 0.
func Main(ctx context.Context, args []string, env Env) int {
	a := &app{env: env}
	root := a.root() //nolint:contextcheck // commands get theirs from cobra
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil && !a.started {
		err = a.usage(root, args, err)
	}
	code := exitCode(ctx, err)
	if err != nil && !errors.Is(err, errSilent) {
		a.complain(ctx, err, code)
	}
	return code
}

// app is one run of the program.
type app struct {
	env Env
	// started says that the command line was understood and its command was called.
	started bool
	// unanswered is since when no question of a command that waits was answered, which was told; zero:
	// the newest one was.
	unanswered time.Time

	server     string
	tokenFile  string
	caFile     string
	configFile string
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "ironherd",
		Short: "Turn servers into a working fleet and keep it working",
		Long: `Ironherd finds machines at a provider, brings them under management, learns their hardware and installs them.

  ironherd demo                 a whole fleet, simulated, on this machine
  ironherd serve --config FILE  the control plane
  ironherd status               how the fleet is, and what needs a look
  ironherd machine list         what is there
  ironherd machine explain NAME why it does (not) do anything

A machine is named by its ID, its host name, provider/provider-ID, or an unambiguous beginning of its ID, of at least 8 characters.
Exit codes: ` + exitWords + `.
The docs are in docs/ of the repository, and in /usr/share/doc/ironherd/docs where the package is installed.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          unknownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(a.env.Stdin)
	root.SetOut(a.env.Stdout)
	root.SetErr(a.env.Stderr)
	flags := root.PersistentFlags()
	flags.StringVar(&a.server, "server", "", "control plane to ask: unix:///PATH, http://HOST:PORT or https://HOST:PORT ($IRONHERD_SERVER)")
	flags.StringVar(&a.tokenFile, "token-file", "", "file with your token, for http and https ($IRONHERD_TOKEN_FILE)")
	flags.StringVar(&a.caFile, "ca-file", "", "PEM file with the only certificates to verify the control plane by, for https: its operator-ca.crt ($IRONHERD_CA_FILE)")
	flags.StringVar(&a.configFile, "config", "", "configuration file of the control plane, which names its socket, too ($IRONHERD_CONFIG)")
	root.Version = a.env.Version
	root.SetVersionTemplate("ironherd {{.Version}}\n")
	root.SetHelpCommand(helpCommand(root))
	root.AddCommand(
		a.statusCommand(), a.machineCommand(), a.planCommand(), a.recoveryCommand(), a.providerCommand(), a.sessionCommand(), a.discrepancyCommand(),
		a.imageCommand(), a.serveCommand(), a.demoCommand(), a.simCommand(), a.rehearseCommand(),
		a.configCommand(), a.tokenCommand(), a.dbCommand(), a.versionCommand(),
	)
	a.markStarted(root)
	return root
}

// helpCommand is --help for those who ask with a word.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND...]", Short: "Show the help of a command",
		Example: `  ironherd help machine install`,
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				if cmd == nil || err != nil {
					cmd, rest = root, args
				}
				return unknownCommand(cmd, rest)
			}
			cmd.InitDefaultHelpFlag()
			cmd.InitDefaultVersionFlag()
			return cmd.Help()
		},
	}
}

// markStarted makes every command record that it was called. A failure before that is one of usage.
func (a *app) markStarted(cmd *cobra.Command) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			a.started = true
			if err := checkGiven(cmd.Flags()); err != nil {
				return err
			}
			return run(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		a.markStarted(sub)
	}
}

// neverEmpty are the flags that say which control plane is asked, what it runs with, or what a
// machine or an image is given. Without one of them, something else counts in its place.
var neverEmpty = []string{
	"server", "config", "token-file", "ca-file", "roles", "dir", "first-boot", "seen-up-ca", "sources", "apt-config",
}

// checkGiven refuses such a flag with nothing in it: a script whose variable is not set does not
// mean what counts without the flag. Where the flag is required, its command refuses it.
func checkGiven(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		if err == nil && f.Value.String() == "" && slices.Contains(neverEmpty, f.Name) && !strings.HasSuffix(f.Usage, "(required)") {
			err = fleet.Errorf(fleet.KindInvalid, "--%s must not be empty: leave it out if that is what is meant", f.Name)
		}
	})
	return err
}

// group returns the command of a noun: it only holds the commands of its verbs.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Args: unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(commands...)
	return cmd
}

func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = ": did you mean " + strings.Join(near, " or ") + "?"
	}
	return fmt.Errorf("there is no command %q%s", strings.TrimSpace(strings.TrimPrefix(cmd.CommandPath()+" "+args[0], "ironherd")), hint)
}

// forms are what values of flags look like, by their type.
var forms = map[string]string{
	"int": "a whole number", "int64": "a whole number", "uint64": "a whole number of at least 0", "float64": "a number",
	"duration": "a duration such as 30s, 5m or 1h30m", "bool": "true or false",
}

// exactly accepts as many arguments as the command's usage has words in capitals; those in brackets
// may be left out.
func exactly(cmd *cobra.Command, args []string) error {
	var names []string
	optional := 0
	for _, word := range strings.Fields(cmd.Use)[1:] {
		if word[0] == '-' {
			break
		}
		if word[0] == '[' {
			optional++
			continue
		}
		names = append(names, word)
	}
	if most := len(names) + optional; len(args) > most {
		return fmt.Errorf("%q is more than is expected", args[most])
	}
	return missing(names, args)
}

// oneOrMore accepts one argument of that name, and more.
func oneOrMore(name string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error { return missing([]string{name}, args) }
}

// missing says which arguments are missing.
func missing(names, args []string) error {
	switch lack := names[min(len(args), len(names)):]; len(lack) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("%s is missing", lack[0])
	default:
		return fmt.Errorf("%s are missing", strings.Join(lack, " and "))
	}
}

// usage says what is wrong with the command line, and where to read on.
func (a *app) usage(root *cobra.Command, args []string, err error) error {
	cmd, _, findErr := root.Find(args)
	if findErr != nil || cmd == nil {
		cmd = root
	}
	text := err.Error()
	if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if form := forms[wrong.GetFlag().Value.Type()]; form != "" {
			text = fmt.Sprintf("--%s must be %s, not %q", wrong.GetFlag().Name, form, wrong.GetValue())
		}
	}
	return fleet.Errorf(fleet.KindInvalid, "%s (see %s --help)", text, cmd.CommandPath())
}

// complain writes a failure to standard error.
func (a *app) complain(ctx context.Context, err error, code int) {
	if code == exitInterrupted && ctx.Err() != nil {
		a.note("ironherd: interrupted")
		return
	}
	for _, failure := range failureLines(err) {
		for line := range strings.Lines(failure) {
			a.note("ironherd: %s", strings.TrimSuffix(line, "\n"))
		}
	}
}

// note writes a line for people to standard error, without what could control their terminal. There
// is nobody to tell when that fails.
func (a *app) note(format string, args ...any) {
	_, _ = fmt.Fprintln(a.env.Stderr, clean(fmt.Sprintf(format, args...)))
}

// getenv returns the last value of a variable in the environment, as a shell would.
func (a *app) getenv(name string) string {
	value := ""
	for _, entry := range a.env.Environ {
		if v, ok := strings.CutPrefix(entry, name+"="); ok {
			value = v
		}
	}
	return value
}
