package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/telemetry"
	"github.com/ironherd/ironherd/reconciler/etcd"
)

// Env is what a run of the program gets from outside.
type Env struct {
	Stdout, Stderr io.Writer
	// StderrTerminal tells that standard error is a terminal.
	StderrTerminal bool
	// Environ is the environment, as os.Environ returns it.
	Environ []string
	// ConfigFile is the configuration where none is named and it exists; "": there is none.
	ConfigFile string
	// Hostname of this host, which is the default for the name of the node.
	Hostname string
	// Version of this program.
	Version string
}

// Exit codes, as those of ironherd.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitConflict    = 5
	exitPartly      = 6
	exitUnreachable = 7
	exitInterrupted = 130
)

// errPartly tells that only a part was done or shown. What is missing has been reported.
var errPartly = errors.New("not everything could be done")

// Main runs one command line (without the program's name) and returns the exit code.
func Main(ctx context.Context, args []string, env Env) int {
	a := &app{env: env}
	root := a.root() //nolint:contextcheck // commands get theirs from cobra
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !a.started {
		err = fleet.Errorf(fleet.KindInvalid, "%w (see %s --help)", err, cmd.CommandPath())
	}
	code := exitCode(ctx, err)
	switch {
	case code == exitInterrupted:
		a.note("interrupted")
	case err != nil && code != exitPartly:
		for line := range strings.SplitSeq(err.Error(), "\n") {
			a.note("%s", line)
		}
	}
	return code
}

func exitCode(ctx context.Context, err error) int {
	switch {
	case err == nil:
		return exitDone
	case ctx.Err() != nil:
		return exitInterrupted
	case errors.Is(err, errPartly):
		return exitPartly
	}
	if all := fleet.Split(err); len(all) > 0 {
		err = all[0] // the first fault decides
	}
	switch fleet.KindOf(err) {
	case fleet.KindInvalid:
		return exitUsage
	case fleet.KindNotFound:
		return exitNotFound
	case fleet.KindConflict, fleet.KindInUse, fleet.KindLeaseLost:
		return exitConflict
	case fleet.KindTimeout, fleet.KindTemporary:
		return exitUnreachable
	}
	return exitFailed
}

// app is one run of the program.
type app struct {
	env     Env
	started bool
	file    string
	flags   []origin
}

// settingFlag is a flag that sets a key.
type settingFlag struct {
	app     *app
	setting setting
}

func (o settingFlag) String() string { return "" }
func (o settingFlag) Type() string   { return "value" }

func (o settingFlag) Set(value string) error {
	o.app.flags = append(o.app.flags, origin{o.setting.key, value, "flag --" + o.setting.flag()})
	return nil
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "ironherd-reconciler",
		Short: "Keep a Kubernetes cluster's base resources as its newest release wants them",
		Long: `ironherd-reconciler runs beside every control-plane node's API server. One of them, of the newest release present, keeps the
cluster's base resources; an API server may serve only when the resources are what it works with.

  ironherd-reconciler run          the service
  ironherd-reconciler wait-ready   waits until the API server may serve
  ironherd-reconciler expose       lets clients reach the API server while it may serve
  ironherd-reconciler status       who leads, what is announced, what blocks and why
  ironherd-reconciler plan         what a pass would change

Every setting is a key of the file, a variable IRONHERD_RECONCILER_KEY, or a flag; the later wins.
The file is the one of --config, else of IRONHERD_RECONCILER_CONFIG, else /etc/ironherd/reconciler.yaml where that exists.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(a.env.Stdout)
	root.SetErr(a.env.Stderr)
	flags := root.PersistentFlags()
	flags.StringVar(&a.file, "config", a.getenv(prefix+"CONFIG"), "configuration file (YAML)")
	for _, s := range settings() {
		flags.Var(settingFlag{a, s}, s.flag(), s.usage)
	}
	root.AddCommand(
		a.runCommand(), a.waitReadyCommand(), a.exposeCommand(), a.statusCommand(), a.planCommand(),
		group("prune", "The deletion of what is no longer in the manifests", a.pruneApproveCommand(), a.pruneWithdrawCommand()),
		a.pauseCommand(), a.resumeCommand(), a.forceCommand(), a.unforceCommand(),
		group("node", "The registry of control-plane nodes", a.nodeListCommand(), a.nodeRegisterCommand(), a.nodeRemoveCommand()),
		group("config", "The configuration", a.configCheckCommand()),
		a.versionCommand(),
	)
	a.wrap(root)
	return root
}

// group returns a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(commands...)
	return cmd
}

// wrap makes every command record that it was called. An error before that is one of usage.
func (a *app) wrap(cmd *cobra.Command) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			a.started = true
			return run(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		a.wrap(sub)
	}
}

func (a *app) getenv(name string) (value string) {
	for _, entry := range a.env.Environ {
		if v, ok := strings.CutPrefix(entry, name+"="); ok {
			value = v
		}
	}
	return value
}

// note writes a line for people, and ignores errors: there is no other way to report them.
func (a *app) note(format string, args ...any) {
	_, _ = fmt.Fprintf(a.env.Stderr, "ironherd-reconciler: "+format+"\n", args...)
}

// configFile returns the file that was named, else the default where it exists. One that cannot be
// looked at does, as far as anybody knows.
func (a *app) configFile() string {
	if a.file != "" || a.env.ConfigFile == "" {
		return a.file
	}
	if _, err := os.Stat(a.env.ConfigFile); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return a.env.ConfigFile
}

// config returns the configuration, checked as far as every command needs it.
func (a *app) config() (config, error) {
	file := a.configFile()
	c, err := load(a.env.Hostname, file, a.env.Environ, a.flags)
	switch {
	case file != "":
		c.where = " in " + file
	case a.env.ConfigFile != "":
		c.where = fmt.Sprintf(": %s does not exist, and --config names no other file", a.env.ConfigFile)
	}
	return c, errors.Join(err, c.build.Validate(), c.layout.Validate())
}

func (a *app) logger(c config) (*slog.Logger, error) {
	options := c.log
	options.Terminal = a.env.StderrTerminal
	options.Color = a.env.StderrTerminal && a.getenv("NO_COLOR") == "" && a.getenv("TERM") != "dumb"
	return telemetry.NewLogger(a.env.Stderr, options)
}

// withEtcd calls do with the configuration, a logger, and a client of etcd.
func (a *app) withEtcd(ctx context.Context, do func(c config, client *clientv3.Client, logger *slog.Logger) error) error {
	c, err := a.config()
	if err = errors.Join(err, c.checkEtcd()); err != nil {
		return err
	}
	logger, err := a.logger(c)
	if err != nil {
		return err
	}
	client, err := etcd.Dial(ctx, c.etcd)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // the process ends its connections in any case
	return do(c, client, logger)
}

// unreachable gives any error of etcd the kind of one that does not answer.
func unreachable(err error) error {
	if err == nil || fleet.KindOf(err) != fleet.KindUnknown {
		return err
	}
	return fleet.Errorf(fleet.KindTemporary, "%w", err)
}

// format is the value of -o.
type format string

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "format" }

func (f *format) Set(value string) error {
	if value != "table" && value != "json" {
		return errors.New("use table or json")
	}
	*f = format(value)
	return nil
}

func outputFlag(cmd *cobra.Command) *format {
	f := format("table")
	cmd.Flags().VarP(&f, "output", "o", "how to print: table or json")
	return &f
}

// print writes a value to standard output.
func (a *app) print(f format, value any, table func(io.Writer)) error {
	var out strings.Builder
	if f == "json" {
		encoder := json.NewEncoder(&out)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(value); err != nil {
			return fmt.Errorf("encode the answer: %w", err)
		}
	} else {
		table(&out)
	}
	if _, err := io.WriteString(a.env.Stdout, out.String()); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

func timeoutFlag(cmd *cobra.Command, otherwise time.Duration, usage string) *time.Duration {
	return cmd.Flags().Duration("timeout", otherwise, usage)
}
