// Command ironherd is the control plane and the operators' command line in one binary. `ironherd
// --help` says more.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/term"

	"github.com/ironherd/ironherd/internal/cli"
)

// version is set by the linker (-X main.version=…).
var version string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() {
		<-ctx.Done()
		stop() // a second signal ends the process at once
	}()
	executable, err := os.Executable()
	if err != nil {
		executable = os.Args[0]
	}
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		watchdog = 0 // not meant for this process
	}
	code := cli.Main(ctx, os.Args[1:], cli.Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		StdoutTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		StderrTerminal: term.IsTerminal(int(os.Stderr.Fd())),
		StderrSize: func() (columns, lines int) {
			columns, lines, _ = term.GetSize(int(os.Stderr.Fd())) // zeros when it has none
			return columns, lines
		},
		Environ:    os.Environ(),
		Executable: executable,
		Version:    programVersion(),
		Notify:     notify,
		Watchdog:   watchdog,
	})
	stop()
	os.Exit(code)
}

// notify tells systemd, where it started the program.
func notify(state string) error {
	_, err := daemon.SdNotify(false, state)
	return err
}

// programVersion is the linker's version, else the revision that the toolchain recorded.
func programVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" && len(setting.Value) >= 12 {
			return "devel-" + setting.Value[:12]
		}
	}
	return "devel"
}
