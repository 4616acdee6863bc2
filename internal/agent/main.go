package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
)

// Exit codes of Main.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// Env is the machine that Main works on, and what it is given and gives back.
type Env struct {
	// Root is put before every path that the agent touches (/sys, /proc, /dev, /run, /var). Empty means "/".
	Root string
	// Version is what `version`, takeover responses and heartbeats say.
	Version string

	Stdin          io.Reader
	Stdout, Stderr io.Writer

	// Reboot restarts the machine; it returns when the restart is under way. Nil: the kernel's own way, below Root.
	Reboot func(ctx context.Context) error
	// Detach lets run go on after Main has returned, until run returns or the context that it is given ends. It must not wait for
	// run. Nil: run becomes a process of its own, this executable's `run`.
	Detach func(run func(ctx context.Context))
	// Logger is where the long-lived part logs. Nil: a file of bounded size, /var/log/ironherd-agent.log below Root.
	Logger *slog.Logger
	// HTTPClient fetches images. Nil: a client of the agent's own.
	HTTPClient *http.Client
}

// Main is the program `ironherd-agent`: args are its arguments without the program's name, the result is its exit code.
// Everything that it touches comes from env, so that a simulator can run many agents in one process.
func Main(_ context.Context, args []string, env Env) int {
	if len(args) == 1 && args[0] == "version" {
		_, _ = fmt.Fprintln(env.Stdout, env.Version)
		return exitDone
	}
	_, _ = fmt.Fprintln(env.Stderr, "usage: ironherd-agent takeover|run|inventory|version")
	return exitUsage
}
