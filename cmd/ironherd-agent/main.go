// Command ironherd-agent runs on machines: it is put in charge over SSH (takeover) and then keeps
// the session with the control plane (run).
//
// IRONHERD_AGENT_ROOT is put before every path that it touches (/sys, /proc, /dev, /run, /var);
// default "/". A simulator sets it to let the agent work on a machine made of files.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/ironherd/ironherd/internal/agent"
)

// version is set by the linker (-X main.version=…). What the toolchain records would do as well,
// but reading it costs every machine some KiB.
var version = "devel"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := agent.Main(ctx, os.Args[1:], agent.Env{
		Root:    os.Getenv("IRONHERD_AGENT_ROOT"),
		Version: version,
		Stdin:   os.Stdin,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
	})
	stop()
	os.Exit(code)
}
