package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/ironherd/ironherd/internal/fleet"
)

// ExitError says that a command ran and failed. The connection is still good.
type ExitError struct {
	// Status is the command's exit status; -1 when a signal ended it, or when the host did not say.
	Status int
	// Signal that ended the command, without "SIG"; empty when none did.
	Signal string
	// Stderr is the last line that the command wrote there.
	Stderr string
	// Stdout is the beginning of what the command wrote there.
	Stdout string
}

// Error tells how the command ended, what it said, and what that means where it is known.
func (e *ExitError) Error() string {
	how := fmt.Sprintf("exit status %d", e.Status)
	switch {
	case e.Signal != "":
		how = "ended by signal " + Quote(e.Signal)
	case e.Status == -1:
		how = "ended without an exit status"
	}
	if words := e.words(); words != "" {
		how += ": " + Quote(words)
	}
	if hint := e.hint(); hint != "" {
		how += " (" + hint + ")"
	}
	return how
}

// notFound is the exit status with which a shell says that it has no such command.
const notFound = 127

// ended returns the error for what was given up because ctx ended. It is a timeout even if ctx was
// cancelled, because in both cases the host may have done what it was asked for.
func ended(ctx context.Context, what string) error {
	return &fleet.Error{Kind: fleet.KindTimeout, Message: what + " was given up", Err: fleet.ContextError(ctx)}
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout() || errors.Is(err, os.ErrDeadlineExceeded)
}
