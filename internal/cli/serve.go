package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/daemon"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/service"
)

func (a *app) serveCommand() *cobra.Command {
	var dir, roles, level, profile string
	var sets []string
	cmd := &cobra.Command{
		Use:   "serve --config FILE",
		Short: "Run the control plane",
		Long: `Serve runs the control plane until it is told to stop (SIGTERM or SIGINT): then it takes on nothing new, finishes or hands back
what it is doing, and ends with exit code 0. A second signal ends it at once; nothing is lost by that.
SIGHUP changes nothing, unless standard error is a terminal: a changed configuration counts from the next start.

The configuration is the file, over that the environment (IRONHERD_SESSION_LEASE for session.lease), over that the flags.`,
		Example: `  ironherd serve --config /etc/ironherd/ironherd.yaml
  ironherd serve --config herd.yaml --roles janitor,agent-api,operator-api --set session.lease=10s`,
		Args: exactly,
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the control plane (key dir)")
	cmd.Flags().StringVar(&roles, "roles", "", "roles of this process, joined by commas (key roles)")
	cmd.Flags().StringVar(&level, "log-level", "", "debug, info, warn or error (key log.level)")
	cmd.Flags().StringArrayVar(&sets, "set", nil, "set any key, as session.lease=10s; may be given more than once")
	cmd.Flags().StringVar(&profile, "cpu-profile", "", "write what takes processor time into this file at the end, for go tool pprof")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		// No core is dumped, not even to a program: core_pattern may be a pipe, for which the limit on
		// the size of cores does not count. A core would hold keys.
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return fmt.Errorf("keep cores from being dumped: %w", err)
		}
		if profile != "" {
			stop, failed := startProfile(profile)
			if failed != nil {
				return failed
			}
			defer func() { err = errors.Join(err, stop()) }()
		}
		overrides, err := parseSets(sets)
		if err != nil {
			return err
		}
		for _, named := range []config.Override{
			{Flag: "--dir", Key: "dir", Value: dir},
			{Flag: "--roles", Key: "roles", Value: roles},
			{Flag: "--log-level", Key: "log.level", Value: level},
		} {
			if named.Value != "" {
				overrides = append(overrides, named)
			}
		}
		loaded, err := a.loadConfig(overrides)
		if faults, ok := errors.AsType[config.Faults](err); ok && faults.Pass() {
			return fleet.Errorf(fleet.KindTemporary, "%w", err) // whoever supervises us tries again
		}
		if err != nil {
			return err
		}
		logger, err := a.logger(loaded.Log)
		if err != nil {
			return err
		}
		if !a.env.StderrTerminal { // else the terminal may be gone, and nobody sees it run
			defer service.OutliveHangups(logger)()
		}
		d, err := daemon.Open(cmd.Context(), loaded, daemon.Options{Logger: logger, Version: a.env.Version})
		if cmd.Context().Err() != nil && isCancelled(err) {
			logger.Info("told to stop while it started", slog.Any("err", err)) // it may have more in it
			return nil
		}
		if err != nil {
			return err
		}
		ended, told := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(told)
			s := supervisor{notify: a.env.Notify, watchdog: a.env.Watchdog, drain: loaded.DrainTimeout, logger: logger}
			s.follow(context.WithoutCancel(cmd.Context()), cmd.Context(), d, ended)
		}()
		err = d.Run(cmd.Context(), func() { a.announce(d) })
		close(ended)
		<-told
		return err
	}
	return cmd
}

// startProfile notes from now on what takes processor time, until stop writes the rest of it.
func startProfile(path string) (stop func() error, err error) {
	file, err := os.OpenFile(filepath.Clean(path), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "--cpu-profile: %w", err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(fmt.Errorf("--cpu-profile: %w", err), file.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return file.Close()
	}, nil
}

// announce tells where the control plane is reached.
func (a *app) announce(d *daemon.Daemon) {
	at := d.Addresses()
	var parts []string
	for _, p := range []struct{ name, address string }{
		{"agents", at.AgentAPI}, {"operators", at.OperatorURL}, {"socket", at.Socket},
	} {
		if p.address != "" {
			parts = append(parts, p.name+" "+p.address)
		}
	}
	a.note("ironherd %s is ready: %s", a.env.Version, strings.Join(parts, ", "))
}

func parseSets(sets []string) ([]config.Override, error) {
	var overrides []config.Override
	for _, set := range sets {
		key, value, ok := strings.Cut(set, "=")
		if !ok || key == "" {
			return nil, fleet.Errorf(fleet.KindInvalid, "--set %q: write key=value, such as session.lease=10s", set)
		}
		overrides = append(overrides, config.Override{Flag: "--set", Key: key, Value: value})
	}
	return overrides, nil
}

// logger returns what a configuration asks for, on standard error.
func (a *app) logger(c config.Log) (*slog.Logger, error) {
	return daemon.NewLogger(a.env.Stderr, c, a.env.StderrTerminal, a.env.StderrTerminal && a.getenv("NO_COLOR") == "")
}

// loggerAt is that of what is not a control plane: it says nothing unless a level is given.
func (a *app) loggerAt(level string) (*slog.Logger, error) {
	if level == "" {
		return slog.New(slog.DiscardHandler), nil
	}
	return a.logger(config.Log{Level: level, Format: "auto"})
}
