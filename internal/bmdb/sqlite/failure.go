package sqlite

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	driver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// failed says of an error at run time that comes of the database's disk what a person can do about
// it. Whatever was begun is undone. A control plane goes on by itself as soon as the disk takes it.
func (e *Engine) failed(err error) error {
	var why *driver.Error
	if fleet.KindOf(err) != fleet.KindUnknown || !errors.As(err, &why) {
		return err
	}
	switch {
	case why.Code() == sqlite3.SQLITE_FULL:
		return e.full(err)
	case why.Code()&0xff == sqlite3.SQLITE_IOERR:
		return bmdb.Unavailable("the disk of the database %s fails, or is full: look at the host's kernel log and at `df`, and make room where it is full (%w)",
			e.path, err)
	}
	return err
}

func (e *Engine) full(err error) error {
	return bmdb.Unavailable("the disk of the database %s is full: make room on it; a control plane goes on by itself then, and a command is run again (%w)",
		e.path, err)
}

// unmarked is the error of a mark that cannot be written beside the database.
func (e *Engine) unmarked(err error) error {
	err = fmt.Errorf("write the database's mark: %w", err)
	switch {
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT):
		return e.full(err)
	case passes(err):
		return fleet.Errorf(fleet.KindTemporary, "%w", err)
	}
	return err
}

// passing are the causes that end by themselves, or once somebody makes room or mounts the file
// system for writing again. A permission stays as it is.
var passing = []error{unix.EROFS, unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EMFILE}

func passes(err error) bool {
	return slices.ContainsFunc(passing, func(why error) bool { return errors.Is(err, why) })
}

// unwritable is the error of a database that cannot be opened: KindTemporary where the cause may
// pass, and KindInvalid otherwise.
func unwritable(path string, err error) error {
	kind := fleet.KindInvalid
	if passes(err) {
		kind = fleet.KindTemporary
	}
	return fleet.Errorf(kind, "database %s cannot be opened for writing: %w", path, cause(err))
}

// refusal returns why no file can be made beside the database, which SQLite does not tell; nil when
// one can.
func refusal(path string) error {
	if file, err := filepath.EvalSymlinks(path); err == nil {
		path = file
	}
	probe, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+partialMark+"*")
	if err != nil {
		return cause(err)
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}
