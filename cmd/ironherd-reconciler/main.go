// Command ironherd-reconciler keeps a Kubernetes cluster's base resources as its newest release
// wants them. It runs beside every control-plane node's API server. `ironherd-reconciler --help`
// says more.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"golang.org/x/term"

	"github.com/ironherd/ironherd/internal/reconciler/command"
)

// version is set by the linker (-X main.version=…).
var version string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() {
		<-ctx.Done()
		stop() // a second signal ends the process at once
	}()
	hostname, _ := os.Hostname() // without one, the node must be named
	code := command.Main(ctx, os.Args[1:], command.Env{
		Stdout: os.Stdout, Stderr: os.Stderr,
		StderrTerminal: term.IsTerminal(int(os.Stderr.Fd())),
		Environ:        os.Environ(),
		ConfigFile:     "/etc/ironherd/reconciler.yaml",
		Hostname:       hostname,
		Version:        programVersion(),
	})
	stop()
	os.Exit(code)
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
