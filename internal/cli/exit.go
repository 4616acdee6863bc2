package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"connectrpc.com/connect"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/service"
)

// Exit codes.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitNotAllowed  = 4
	exitConflict    = 5
	exitPartly      = 6
	exitUnreachable = 7
	exitInterrupted = 130
)

// exitWords says what each exit code means.
const exitWords = "0 done, 1 failed, 2 bad usage or input, 3 not found, 4 not allowed, 5 conflict, 6 partly done, 7 unreachable or timed out, 130 interrupted"

// exitCodes is total over fleet.Kinds; a test holds it to that.
var exitCodes = map[fleet.Kind]int{
	fleet.KindUnknown:         exitFailed,
	fleet.KindInvalid:         exitUsage,
	fleet.KindNotFound:        exitNotFound,
	fleet.KindConflict:        exitConflict,
	fleet.KindUnauthenticated: exitNotAllowed,
	fleet.KindForbidden:       exitNotAllowed,
	fleet.KindUnsupported:     exitFailed,
	fleet.KindThrottled:       exitUnreachable,
	fleet.KindNoCapacity:      exitFailed,
	fleet.KindRaceLost:        exitConflict,
	fleet.KindTemporary:       exitUnreachable,
	fleet.KindTimeout:         exitUnreachable,
	fleet.KindLeaseLost:       exitConflict,
	fleet.KindInUse:           exitConflict,
}

// errSilent ends a command with a failure that it has already printed.
var errSilent = errors.New("already printed")

// partly is the error of a command that did only a part of what it was asked for.
type partly struct{ error }

// Unwrap returns what is still to be printed.
func (p partly) Unwrap() error { return p.error }

// interrupted is the error of a command that a signal has ended which ends no other.
type interrupted struct{ error }

// Unwrap returns what is still to be printed.
func (i interrupted) Unwrap() error { return i.error }

// readBy is a writer that tells when nobody reads it any more.
type readBy struct {
	io.Writer
	gone func()
}

func (r readBy) Write(p []byte) (int, error) {
	n, err := r.Writer.Write(p)
	if errors.Is(err, syscall.EPIPE) {
		r.gone()
	}
	return n, err
}

// untilHangup runs what nobody needs any more whose terminal is closed, or whose words nobody reads
// any more: that interrupts it.
func (a *app) untilHangup(ctx context.Context, run func(context.Context) error) error {
	ctx, stop := service.UntilHangup(ctx)
	defer stop()
	// A write to a pipe that nobody reads ends the process at once, unless it asks for the signal.
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	defer signal.Stop(pipes)
	ctx, gone := context.WithCancel(ctx)
	defer gone()
	a.env.Stdout, a.env.Stderr = readBy{a.env.Stdout, gone}, readBy{a.env.Stderr, gone}
	err := run(ctx)
	if ctx.Err() != nil && isCancelled(err) {
		return interrupted{err}
	}
	return err
}

func exitCode(ctx context.Context, err error) int {
	var part partly
	var cut interrupted
	switch {
	case err == nil:
		return exitDone
	case ctx.Err() != nil && isCancelled(err), errors.As(err, &cut):
		return exitInterrupted
	case errors.As(err, &part):
		return exitPartly
	}
	return exitCodes[kindOf(err)]
}

// isCancelled says whether err is no more than the end of a context.
func isCancelled(err error) bool {
	return errors.Is(err, context.Canceled) || connect.CodeOf(err) == connect.CodeCanceled
}

// kindOf returns the kind of a command's failure, whether it comes from here or from the control
// plane that was asked.
func kindOf(err error) fleet.Kind {
	if remote, ok := errors.AsType[*connect.Error](err); ok {
		if kind := fleet.KindOf(err); kind != fleet.KindUnknown && !connect.IsWireError(err) {
			return kind
		}
		return kindOfCode(remote.Code())
	}
	return fleet.KindOf(err)
}

// kindOfCode returns the kind that a code on the wire stands for. Where kinds share a code, it
// returns the most frequent one.
func kindOfCode(code connect.Code) fleet.Kind {
	switch code {
	case connect.CodeInvalidArgument, connect.CodeOutOfRange:
		return fleet.KindInvalid
	case connect.CodeNotFound:
		return fleet.KindNotFound
	case connect.CodeFailedPrecondition, connect.CodeAlreadyExists:
		return fleet.KindConflict
	case connect.CodeUnauthenticated:
		return fleet.KindUnauthenticated
	case connect.CodePermissionDenied:
		return fleet.KindForbidden
	case connect.CodeUnimplemented:
		return fleet.KindUnsupported
	case connect.CodeResourceExhausted:
		return fleet.KindThrottled
	case connect.CodeAborted:
		return fleet.KindLeaseLost
	case connect.CodeUnavailable:
		return fleet.KindTemporary
	case connect.CodeDeadlineExceeded:
		return fleet.KindTimeout
	case connect.CodeCanceled, connect.CodeUnknown, connect.CodeInternal, connect.CodeDataLoss:
	}
	return fleet.KindUnknown
}

// failureLines returns what to print about a failure, one sentence a line.
func failureLines(err error) []string {
	if faults, ok := errors.AsType[config.Faults](err); ok {
		lines := faults.Lines()
		if len(lines) > 1 {
			lines = append(lines, plural(len(lines), "fault")+" in the configuration")
		}
		return lines
	}
	return []string{message(err)}
}

// message returns the text of an error. It leaves out the protocol's code before the text of a
// control plane, which is written for people.
func message(err error) string {
	if remote, ok := errors.AsType[*connect.Error](err); ok && connect.IsWireError(err) {
		if remote.Message() == "" {
			return "the control plane answered " + remote.Code().String()
		}
		return remote.Message()
	}
	return err.Error()
}
