package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/secret"
)

// markEvery is how often the mark advances while something is written; a copy older than this is
// recognised.
const markEvery = time.Minute

// mark is how a restored or copied database is recognised (rule 11): an identity and a counter,
// kept in the database and in a file beside it, advanced together at every open and once a minute.
// The database comes first, so that a crash in between leaves the file exactly one behind; whatever
// else differs was put there by somebody.
type mark struct {
	id      string
	counter int64
	// at is the clock's reading at the last advance.
	at time.Duration
	// kept is set once the pair has been found, or made, to agree; until then nothing advances it.
	kept bool
}

func (m mark) String() string { return m.id + " " + strconv.FormatInt(m.counter, 10) + "\n" }

// Restored implements bmdb.Engine. When all is well it advances the mark; when not, it leaves
// everything as it is, so that the evidence is there at every open until somebody accepts it.
func (e *Engine) Restored(ctx context.Context) (evidence string, err error) {
	err = e.Update(ctx, func(ctx context.Context, tx bmdb.Tx) error {
		evidence = ""
		inside, found, err := e.readMark(ctx, tx)
		if err != nil {
			return err
		}
		if evidence = e.leapt; evidence != "" {
			return nil
		}
		outside, unreadable := e.readMarkFile()
		missing, file := errors.Is(unreadable, fs.ErrNotExist), filepath.Base(e.markPath())
		switch {
		case unreadable != nil && !missing:
			evidence = unreadable.Error()
		case !found: // a new database
			inside = mark{id: uuid.NewString()}
		case missing && inside.counter <= 1: // died before the file was first written
		case missing:
			evidence = file + " is missing: the database was copied here without it"
		case outside.id != inside.id:
			evidence = file + " belongs to another database"
		case outside.counter > inside.counter:
			evidence = fmt.Sprintf("the database is older than %s beside it: its counter is %d, not %d", file, inside.counter, outside.counter)
		case outside.counter < inside.counter-1:
			evidence = fmt.Sprintf("%s is older than the database: its counter is %d, not %d", file, outside.counter, inside.counter)
		}
		if evidence == "" {
			e.mark = inside
		}
		return nil
	})
	if err != nil || evidence != "" {
		return evidence, err
	}
	// make up for a crash in between, or the next one would leave the file two behind
	if e.mark.counter > 0 {
		if err := e.writeMarkFile(e.mark); err != nil {
			return "", err
		}
	}
	return "", e.setMark(ctx, mark{id: e.mark.id, counter: e.mark.counter + 1})
}

// AcceptRestore implements bmdb.Engine: the pair agrees again, above anything that either has seen,
// and a clock that was not believed is.
func (e *Engine) AcceptRestore(ctx context.Context) error {
	next := mark{id: uuid.NewString()}
	err := e.View(ctx, func(ctx context.Context, tx bmdb.Tx) error {
		inside, found, err := e.readMark(ctx, tx)
		if found {
			next = inside
		}
		return err
	})
	if err != nil {
		return err
	}
	if outside, err := e.readMarkFile(); err == nil && outside.id == next.id {
		next.counter = max(next.counter, outside.counter)
	}
	next.counter++
	err = e.Update(ctx, func(context.Context, bmdb.Tx) error { // the writer owns the field
		if e.leapt != "" {
			e.time.set(time.Now().UTC(), e.clock.Elapsed())
			e.leapt = ""
		}
		return nil
	})
	if err != nil {
		return err
	}
	return e.setMark(ctx, next)
}

// setMark advances the pair by a transaction of its own.
func (e *Engine) setMark(ctx context.Context, next mark) error {
	err := e.Update(ctx, func(ctx context.Context, tx bmdb.Tx) error { return e.storeMark(ctx, tx, next) })
	if err != nil {
		return fmt.Errorf("advance the database's mark: %w", err)
	}
	if err := e.writeMarkFile(next); err != nil {
		return err
	}
	return e.Update(ctx, func(context.Context, bmdb.Tx) error { // the writer owns the field
		next.at, next.kept = e.clock.Elapsed(), true
		e.mark = next
		return nil
	})
}

// advanceMarkWhenDue runs in the writer, between groups. A failure is logged and tried again a
// minute later; until the file follows, the database does not go on either.
func (e *Engine) advanceMarkWhenDue(ctx context.Context) {
	if !e.mark.kept || e.clock.Elapsed()-e.mark.at < markEvery {
		return
	}
	e.mark.at = e.clock.Elapsed()
	next := e.mark
	next.counter++
	err := e.writeMarkFile(e.mark)
	if err == nil { // without a transaction, since no other mark is left to delete: it is one write
		err = e.storeMark(ctx, &tx{conn: e.writer, now: e.now()}, next)
	}
	if err == nil {
		e.mark = next
		err = e.writeMarkFile(next)
	}
	if err != nil {
		e.logger.ErrorContext(ctx, "the database's mark could not be advanced", slog.Any("err", err))
	}
}

func (e *Engine) storeMark(ctx context.Context, tx bmdb.Tx, m mark) error {
	if _, err := tx.ExecContext(ctx, "DELETE FROM database_mark WHERE id <> $1", m.id); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO database_mark (id, clock, counter) VALUES ($1, $2, $3)
		ON CONFLICT (id) DO UPDATE SET clock = excluded.clock, counter = excluded.counter`, m.id, tx.Now().UnixMicro(), m.counter)
	return err
}

// readMark also moves the timeline behind what the database has seen, which is known from the mark
// and the youngest rows. It goes on from there, too, when the system's clock is so far ahead that
// it may be wrong.
func (e *Engine) readMark(ctx context.Context, tx bmdb.Tx) (m mark, found bool, err error) {
	var stored int64
	err = tx.QueryRowContext(ctx, `SELECT max(
		COALESCE((SELECT max(clock) FROM database_mark), 0),
		COALESCE((SELECT at FROM history ORDER BY id DESC LIMIT 1), 0),
		COALESCE((SELECT max(extended_at) FROM session WHERE ended_at = 0), 0))`).Scan(&stored)
	if err != nil {
		return mark{}, false, err
	}
	if moved := e.time.notBefore(time.UnixMicro(stored), e.clock.Elapsed()); moved > time.Second {
		e.logger.WarnContext(ctx, "the system's clock is behind the database; database time continues from its own", slog.Duration("ahead", moved))
	}
	if leapt := bmdb.Leapt(time.UnixMicro(stored).UTC(), e.now()); stored > 0 && leapt != "" {
		e.leapt = leapt
		e.time.set(time.UnixMicro(stored).UTC(), e.clock.Elapsed())
	}
	err = tx.QueryRowContext(ctx, "SELECT id, counter FROM database_mark").Scan(&m.id, &m.counter)
	if errors.Is(err, sql.ErrNoRows) {
		return mark{}, false, nil
	}
	return m, err == nil, err
}

// markSuffix follows the name of the database.
const markSuffix = ".identity"

// IdentityOf returns where the identity of the database at path is. It is there once the database
// is on the disk, with all its tables.
func IdentityOf(path string) string { return path + markSuffix }

func (e *Engine) markPath() string { return IdentityOf(e.path) }

func (e *Engine) readMarkFile() (mark, error) {
	file, err := secret.Open(e.markPath())
	if err != nil {
		return mark{}, err
	}
	defer func() { _ = file.Close() }() // only read
	text, err := io.ReadAll(io.LimitReader(file, 1<<10))
	if err != nil {
		return mark{}, err
	}
	id, counter, ok := strings.Cut(strings.TrimSpace(string(text)), " ")
	n, err := strconv.ParseInt(counter, 10, 64)
	if !ok || err != nil || id == "" || n < 0 {
		return mark{}, fmt.Errorf("%s cannot be read: %.60q is not an identity and a counter", filepath.Base(e.markPath()), text)
	}
	return mark{id: id, counter: n}, nil
}

// writeMarkFile replaces the file in one step that survives a crash.
func (e *Engine) writeMarkFile(m mark) error {
	temporary := e.markPath() + ".new"
	err := writeFile(temporary, m.String(), !e.unsynced)
	if err == nil {
		err = os.Rename(temporary, e.markPath())
	}
	if err == nil && !e.unsynced {
		err = syncDir(filepath.Dir(e.path))
	}
	if err != nil {
		return e.unmarked(err)
	}
	return nil
}

// writeFile makes the file anew.
func writeFile(path, text string, synced bool) error {
	// A file that a crash left may be of another user, and a new one is of the right one.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := secret.Create(path)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err == nil && synced {
		err = syncFile(f)
	}
	return errors.Join(err, f.Close())
}
