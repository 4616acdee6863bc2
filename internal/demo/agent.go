package demo

import (
	"context"
	"io"
	"log/slog"

	"github.com/ironherd/ironherd/internal/agent"
	"github.com/ironherd/ironherd/internal/sim"
)

// Agent returns the agent for simulated machines that run it in this process. It is the code of the
// executable that is uploaded to the others, with another root.
func Agent(version string) sim.AgentFunc {
	return func(ctx context.Context, root string, args []string, stdin io.Reader, stdout, stderr io.Writer, host sim.AgentHost) int {
		return agent.Main(ctx, args, agent.Env{
			Root: root, Version: version,
			Stdin: stdin, Stdout: stdout, Stderr: stderr,
			Reboot: host.Reboot, Detach: host.Detach,
			Logger: slog.New(slog.DiscardHandler),
		})
	}
}
