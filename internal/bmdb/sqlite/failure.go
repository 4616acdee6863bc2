package sqlite

import (
	"errors"

	driver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// failed says of an error at run time that comes of the database's disk what a person can do about
// it. Whatever was begun is undone, and all goes on by itself as soon as the disk takes it.
func (e *Engine) failed(err error) error {
	var why *driver.Error
	if fleet.KindOf(err) != fleet.KindUnknown || !errors.As(err, &why) {
		return err
	}
	switch {
	case why.Code() == sqlite3.SQLITE_FULL:
		return bmdb.Unavailable("the disk of the database %s is full: make room on it, and everything goes on by itself (%w)", e.path, err)
	case why.Code()&0xff == sqlite3.SQLITE_IOERR:
		return bmdb.Unavailable("the disk of the database %s fails, or is full: look at the host's kernel log and at `df`, and make room where it is full (%w)",
			e.path, err)
	}
	return err
}
