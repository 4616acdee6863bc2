package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	driver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
)

// Backup writes the database at path, as it is at one instant, into a new file. It may run while a
// process has the database open, and holds nobody up; until it is done, the write-ahead log keeps
// growing. The file appears complete and synced to the disk, or not at all. It is marked: whoever
// opens it is told that it is a restored database (rule 11), however young it is.
//
// KindNotFound when there is no database, KindConflict when the file exists, KindInvalid when path
// is no database of ours. What cannot be written is said of the new file, and not of the database.
func Backup(ctx context.Context, path, to string) error {
	if _, err := os.Stat(path); err != nil {
		return noDatabase(path, err)
	}
	path, err := locate(path)
	if err != nil {
		return err
	}
	return duplicate(ctx, path, to, func(ctx context.Context, db *sql.DB) error {
		return seal(ctx, db, path, "made from the backup of "+fleet.Instant(time.Now()))
	})
}

// Restore puts the backup in the place of a database that is not there: KindConflict while one is,
// or what belongs to one, or where the backup is of a newer release, and KindInUse while a process
// has it. What is restored has the backup's mark, so that nothing is destroyed on its word before
// `ironherd db accept-restore`. It goes on at this host's time.
func Restore(ctx context.Context, backup, path string) (err error) {
	if path, err = filepath.Abs(path); err != nil {
		return fleet.Errorf(fleet.KindInvalid, "database path: %w", err)
	}
	file, err := secret.Follow(path)
	if err != nil {
		return err
	}
	lock, err := lockFile(path, file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	// SQLite would take them for the new file's own
	for _, suffix := range parts[1:] {
		if _, err := os.Lstat(file + suffix); err == nil {
			return fleet.Errorf(fleet.KindConflict, "%s belongs to another database: move it away, with that database", file+suffix)
		}
	}
	if _, err := os.Stat(backup); err != nil {
		return noDatabase(backup, err)
	}
	var have, want int64
	unread := withFile(ctx, backup, func(db *sql.DB) (err error) {
		have, want, err = schemaOf(ctx, db)
		return err
	})
	if unread == nil && have > want { // what cannot be read is told of the copy
		return fleet.Errorf(fleet.KindConflict, "the schema of %s (version %d) is newer than this binary knows (version %d): use a newer binary", backup, have, want)
	}
	err = duplicate(ctx, backup, file, func(ctx context.Context, db *sql.DB) error {
		err := seal(ctx, db, backup, "restored from "+filepath.Base(backup)+" at "+fleet.Instant(time.Now()))
		if err != nil {
			return err
		}
		return goOnNow(ctx, db)
	})
	if why, ok := errors.AsType[*driver.Error](err); ok && fleet.KindOf(err) == fleet.KindInvalid {
		switch why.Code() & 0xff {
		// SQLITE_ERROR: it has none of our tables.
		case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR:
			return fleet.Errorf(fleet.KindInvalid, "%s is no usable backup (%w): name another file", backup, why)
		}
	}
	return err
}

// partialMark is in the names of files that are not complete yet. No other program uses it.
const partialMark = ".ironherd-partial-"

// abandonedAfter is when nobody is at work any more on a partial file that is as it was. Whoever is
// all the same fails, and has to begin again.
const abandonedAfter = 12 * time.Hour

// removeAbandoned removes from a directory what killed backups and restores have left there, each
// as large as a database. What cannot be removed is left to the one who can.
func removeAbandoned(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // whoever makes a file there says what is wrong
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), ".") || !strings.Contains(entry.Name(), partialMark) || !entry.Type().IsRegular() {
			continue
		}
		if info, err := entry.Info(); err == nil && time.Since(info.ModTime()) > abandonedAfter {
			_ = os.Remove(filepath.Join(dir, entry.Name()))
		}
	}
}

// duplicate writes what is in one database file into a new one, and has it marked.
func duplicate(ctx context.Context, from, to string, mark func(context.Context, *sql.DB) error) (err error) {
	if _, err := os.Lstat(to); err == nil {
		return exists(to)
	}
	dir := filepath.Dir(to)
	removeAbandoned(dir)
	partial, err := os.CreateTemp(dir, "."+filepath.Base(to)+partialMark+"*")
	if err != nil {
		return fleet.Errorf(fleet.KindInvalid, "no file can be made in %s: %w", dir, cause(err))
	}
	defer func() {
		err = errors.Join(err, partial.Close())
		for _, suffix := range parts {
			if gone := os.Remove(partial.Name() + suffix); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
				err = errors.Join(err, gone)
			}
		}
	}()
	if err := secret.Give(partial); err != nil {
		return fmt.Errorf("give %s to the owner of its directory: %w", to, err)
	}
	err = withFile(ctx, from, func(db *sql.DB) error {
		if _, err := db.ExecContext(ctx, "SELECT id FROM database_mark"); err != nil {
			return fleet.Errorf(fleet.KindInvalid, "%s is not a database of Ironherd: %w", from, err)
		}
		_, err := db.ExecContext(ctx, "VACUUM INTO $1", partial.Name())
		return err
	})
	if ofWriting(err) {
		return fmt.Errorf("write %s: %w", to, err)
	}
	if err != nil {
		return classify(from, err)
	}
	if err := withFile(ctx, partial.Name(), func(db *sql.DB) error { return mark(ctx, db) }); err != nil {
		return fmt.Errorf("write %s: %w", to, err)
	}
	if err := syncFile(partial); err != nil {
		return fmt.Errorf("write %s: %w", to, err)
	}
	if err := moveTo(partial.Name(), to); errors.Is(err, fs.ErrExist) {
		return exists(to)
	} else if err != nil {
		return fmt.Errorf("write %s: %w", to, err)
	}
	return syncDir(dir)
}

// ofWriting reports whether VACUUM INTO has failed at the file that it writes: it never writes the
// one that it reads.
func ofWriting(err error) bool {
	why, ok := errors.AsType[*driver.Error](err)
	if !ok {
		return false
	}
	switch why.Code() {
	case sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC, sqlite3.SQLITE_IOERR_TRUNCATE:
		return true
	}
	return false
}

// moveTo gives a file another name, and never overwrites one. There are file systems that cannot
// promise that of a rename (NFS, older ZFS), and those without hard links (FAT, some shares).
func moveTo(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	if err := os.Link(from, to); err != nil {
		return err
	}
	return os.Remove(from) // a crash must not leave a database that has two names
}

func noDatabase(path string, err error) error {
	return fleet.Errorf(fleet.KindNotFound, "there is no database at %s: %w", path, cause(err))
}

// cause is the error without its path, which the sentence around it names.
func cause(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

func exists(path string) error {
	return fleet.Errorf(fleet.KindConflict, "%s is there already: nothing is overwritten", path)
}

// Damage says what of the file is damaged; "" when nothing is. It reads all of it, but for what
// only the contents of indexes could tell.
func (e *Engine) Damage(ctx context.Context) (what string, err error) {
	err = e.View(ctx, func(ctx context.Context, tx bmdb.Tx) error {
		what, err = damage(ctx, tx)
		return err
	})
	return what, err
}

// damage is Damage: https://www.sqlite.org/pragma.html#pragma_quick_check.
func damage(ctx context.Context, db statement.DBTX) (what string, err error) {
	if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&what); err != nil {
		return "", err
	}
	if what == "ok" {
		return "", nil
	}
	return what, nil
}

// seal checks a copy and leaves the evidence in it that it is one.
func seal(ctx context.Context, db *sql.DB, from, evidence string) error {
	what, err := damage(ctx, db)
	if err != nil {
		return err
	}
	if what != "" {
		return fleet.Errorf(fleet.KindInvalid, "the copy of %s is damaged: %s", from, what)
	}
	// The database's time may be ahead of this host's. A backup has been told already: what counts is
	// when it came back.
	_, err = db.ExecContext(ctx, `INSERT INTO restored (id, at, evidence) SELECT 1, max($1, clock), $2 FROM database_mark WHERE true
		ON CONFLICT (id) DO UPDATE SET at = excluded.at, evidence = excluded.evidence`, time.Now().UnixMicro(), evidence)
	return err
}

// goOnNow makes a copy that comes back go on now, however old it is, and tells in its evidence how
// old. Time that went on from the copy's would be behind restored.at, and leap when a person
// accepts the restore.
func goOnNow(ctx context.Context, db *sql.DB) error {
	var used int64
	if err := db.QueryRowContext(ctx, "SELECT COALESCE(max(clock), 0) FROM database_mark").Scan(&used); err != nil {
		return err
	}
	now := time.Now().UTC()
	_, err := db.ExecContext(ctx, "UPDATE database_mark SET clock = max(clock, $1)", now.UnixMicro())
	if leapt := bmdb.Leapt(time.UnixMicro(used).UTC(), now); err == nil && used > 0 && leapt != "" {
		_, err = db.ExecContext(ctx, "UPDATE restored SET evidence = evidence || $1", "; "+leapt)
	}
	return err
}

// withFile runs fn on a database file apart from any engine.
func withFile(ctx context.Context, path string, fn func(db *sql.DB) error) (err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return err
	}
	db, err := openFile(path, "rw", "synchronous(FULL)")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1)
	if err := db.PingContext(ctx); err != nil {
		return err
	}
	return fn(db)
}

// syncFile is (*os.File).Sync; a test watches when it is called.
var syncFile = (*os.File).Sync

// syncDir makes the names in a directory survive a power cut.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return errors.Join(syncFile(dir), dir.Close())
}
