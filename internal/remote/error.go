package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/ironherd/ironherd/internal/fleet"
)

// ExitError says that a command ran and failed. The connection is still good.
type ExitError struct {
	// Status is the command's exit status; -1 when a signal ended it, or when the host did not say.
	Status int
	// Signal that ended the command, without "SIG"; empty when none did.
	Signal string
	// Stderr is the line that the command wrote there with the reason: the last one.
	Stderr string
	// Stdout is the beginning of what the command wrote there.
	Stdout string
	// other tells that the command was not what ran.
	other bool
}

// Unusable returns in a few words why another directory of the host may do for an upload or a
// command that failed; "" when none would. In the latter case something ran, or may have run.
func Unusable(err error) string {
	exit, exited := errors.AsType[*ExitError](err)
	wrong, refused := errors.AsType[*DirectoryError](err)
	why := ""
	switch {
	case exited && exit.hint() == hintNotRun && exit.words() != "": // only the host knows the reason
		return "the host did not execute it: " + Quote(exit.words())
	case exited && (refused || exit.noExec()):
		why = exit.hint()
	case refused:
		why = wrong.hint
	}
	if why, _, _ = strings.Cut(why, ":"); why == "" && refused {
		return clip(wrong.Error(), wordsLimit)
	}
	return why
}

// noExec reports whether the host did not execute the command, which another directory may mend, as
// where the file system is mounted noexec.
func (e *ExitError) noExec() bool { return e.hint() == hintNoExec || e.hint() == hintNotRun }

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

// DirectoryError says that a directory of the host cannot be used, because of what it is or because
// of what it lies on: it is not root's alone, cannot be made, is full or read-only. Another
// directory may do. The connection is still good.
type DirectoryError struct {
	// Directory as it was asked for.
	Directory string
	Err       error
	// NotRoot says who wants to use it without root's rights, as "user NAME (uid N)"; empty: root
	// does.
	NotRoot string
	// hint is what is known of the cause; empty: nothing.
	hint string
}

// Error tells the reason, which names the directory.
func (e *DirectoryError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *DirectoryError) Unwrap() error { return e.Err }

// notFound is the exit status with which a shell says that it has no such command.
const notFound = 127

// endedError returns the error for what was given up because ctx ended. It is a timeout even if ctx
// was cancelled, because in both cases the host may have done what it was asked for.
func endedError(ctx context.Context, what string) error {
	return &fleet.Error{Kind: fleet.KindTimeout, Message: what + " was given up", Err: fleet.ContextError(ctx)}
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout() || errors.Is(err, os.ErrDeadlineExceeded)
}
