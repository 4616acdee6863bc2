package sim

import (
	"context"
	"io"
)

// AgentFunc is the agent's program for machines that run it inside the simulator: what an uploaded
// agent does when it is executed on the machine whose file system is the directory root. args are
// its arguments without the program's name; the result is its exit code. ctx ends when the command
// is killed or the machine goes down.
type AgentFunc func(ctx context.Context, root string, args []string, stdin io.Reader, stdout, stderr io.Writer, host AgentHost) int

// AgentHost is the machine that an in-process agent runs on.
type AgentHost interface {
	// Reboot restarts the machine and returns when the restart is under way and cannot be undone. It
	// does not wait for the agent.
	Reboot(ctx context.Context) error
	// Detach starts run, which goes on after the command has ended. Its context ends when the machine
	// goes down. Detach does not wait for run.
	Detach(run func(ctx context.Context))
}
