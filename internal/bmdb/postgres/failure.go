package postgres

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

type ctxWatcher = ctxwatch.Handler

// The codes that mean something to us (Appendix A of PostgreSQL's manual).
const (
	codeSerialization  = "40001"
	codeDeadlock       = "40P01"
	codeLockTimeout    = "55P03"
	codeCancelled      = "57014"
	codeUndefinedTable = "42P01"
	codeUndefinedFunc  = "42883"
	codeForbidden      = "42501"
	codeDuplicateTable = "42P07"
	codeNoSuchDatabase = "3D000"
	codeIdleInTx       = "25P03"
	codeLongTx         = "25P04" // since PostgreSQL 17
	codeDuplicateKey   = "23505"
	codeNotInState     = "55000"
	codeDiskFull       = "53100"
	codeOutOfMemory    = "53200"
	codeLimitExceeded  = "53400"
)

func codeOf(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// undoneByOthers says that the transaction was undone as a whole because of what others did at the
// same time.
func undoneByOthers(err error) bool {
	code := codeOf(err)
	return code == codeSerialization || code == codeDeadlock
}

// neverSent says that a connection which there was is gone, before the statement was sent on it. Of
// a COMMIT it says nothing: see run.
func neverSent(err error) bool {
	var connect *pgconn.ConnectError
	return errors.Is(err, driver.ErrBadConn) || pgconn.SafeToRetry(err) && !errors.As(err, &connect)
}

// Refuses says that the server lets nobody in as whom we connect, or has no database of that name.
func Refuses(err error) bool {
	code := codeOf(err)
	return code == codeNoSuchDatabase || len(code) == 5 && code[:2] == "28"
}

const unreachable = "the database server cannot be reached (is it running, and is database.url right?): %w"

// classify gives an error of the server or of the connection the kind that says what to do about
// it.
func classify(err error) error {
	if err == nil || fleet.KindOf(err) != fleet.KindUnknown || errors.Is(err, context.Canceled) {
		return err
	}
	code := codeOf(err)
	var connect *pgconn.ConnectError
	var network net.Error
	switch {
	case code == codeLockTimeout:
		return fleet.Errorf(fleet.KindTemporary, "somebody else has what is needed locked: %w", err)
	case undoneByOthers(err):
		return fleet.Errorf(fleet.KindTemporary, "others kept coming in between: %w", err)
	case code == codeIdleInTx || code == codeLongTx:
		return fleet.Errorf(fleet.KindTemporary, "the transaction was open for too long: %w", err)
	case Refuses(err): // says nothing of what was to be done: another connection may do it
		return bmdb.Unavailable("the database server refuses: %w", oneLine(err))
	case code == codeCancelled: // the caller's time was up, or somebody asked the server for it
		return fleet.Errorf(fleet.KindTemporary, "the statement was cancelled: %w", err)
	case code == codeOutOfMemory || code == codeLimitExceeded: // maybe of this connection alone
		return fleet.Errorf(fleet.KindTemporary, "the database server has no room: %w", err)
	case code == codeDiskFull:
		return bmdb.Full("the disk of the database server is full: make room on it; a control plane goes on by itself then, and a command is run again (%w)", err)
	case len(code) == 5 && (code[:2] == "57" || code[:2] == "08" || code[:2] == "53"):
		return bmdb.Unavailable("the database server is not available: %w", err)
	case neverSent(err), errors.As(err, &connect):
		return bmdb.Unavailable(unreachable, oneLine(err))
	case errors.As(err, &network), pgconn.Timeout(err), errors.Is(err, io.ErrUnexpectedEOF):
		// It may be of this transaction alone.
		return fleet.Errorf(fleet.KindTemporary, unreachable, oneLine(err))
	}
	return err
}

// reworded is an error in other words.
type reworded struct {
	error
	text string
}

func (r reworded) Error() string { return r.text }
func (r reworded) Unwrap() error { return r.error }

// oneLine makes one line of what the driver tells in one line for each way that it tried, and each
// of those once.
func oneLine(err error) error {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return reworded{err, strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")}
}

// withoutAddress takes the address, which may contain a password, out of an error about it.
func withoutAddress(err error) error {
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) && parse.Unwrap() != nil {
		return parse.Unwrap()
	}
	return errors.New("its hosts and ports, or one of its parameters, are not what PostgreSQL's clients take")
}
