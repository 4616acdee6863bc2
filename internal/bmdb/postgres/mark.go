package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// mark says which database this is (rule 11).
type mark struct {
	id       string // system identifier of the server, a slash, OID of the database
	timeline int64
}

// querier is a connection, or a pool.
type querier interface {
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

// readMark asks the server who it is. known is false when it does not tell.
func readMark(ctx context.Context, q querier) (m mark, known bool, err error) {
	// The timeline is in the name of the log file that is being written: the control file's lags
	// behind after a promotion.
	err = q.QueryRow(ctx, `SELECT (SELECT CAST(system_identifier AS TEXT) FROM pg_control_system()) || '/' ||
		(SELECT CAST(oid AS TEXT) FROM pg_database WHERE datname = current_database()),
		CAST(CAST('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) AS BIT(32)) AS BIGINT)`).Scan(&m.id, &m.timeline)
	switch codeOf(err) {
	case codeUndefinedFunc, codeForbidden:
		return mark{}, false, nil
	case codeNotInState: // of pg_current_wal_lsn, which only a primary has
		return mark{}, false, fleet.Errorf(fleet.KindTemporary, "the database server takes no changes: it is a standby, or still recovers (database.url must name the primary): %w", err)
	}
	return m, err == nil, err
}

// storedMark returns what the database was when it was last accepted; found is false in a new one.
func storedMark(ctx context.Context, q querier) (m mark, found bool, err error) {
	err = q.QueryRow(ctx, "SELECT id, counter FROM database_mark").Scan(&m.id, &m.timeline)
	if errors.Is(err, pgx.ErrNoRows) {
		return mark{}, false, nil
	}
	return m, err == nil, err
}

// tableNote begins the comment on the table of the mark. The OID of that table follows. Whoever
// puts a dump back makes the table anew, under another OID, and the dump carries the comment with
// the old one. TRUNCATE and VACUUM FULL keep the OID.
const tableNote = "Ironherd tells by this comment that a dump was put back; leave it as it is. OID "

// markTable is what the server says of the table of the mark.
type markTable struct {
	oid string
	// noted is the OID that its comment names; "" when the comment names none, as where an older
	// version made the mark.
	noted string
	// owned: we may comment on it.
	owned bool
}

func readTable(ctx context.Context, q querier) (t markTable, err error) {
	var comment string
	err = q.QueryRow(ctx, `SELECT CAST(oid AS TEXT), COALESCE(obj_description(oid, 'pg_class'), ''), pg_has_role(relowner, 'USAGE')
		FROM pg_class WHERE oid = CAST('database_mark' AS REGCLASS)`).Scan(&t.oid, &comment, &t.owned)
	t.noted, _ = strings.CutPrefix(comment, tableNote)
	if t.noted == comment {
		t.noted = ""
	}
	return t, err
}

// compareMark returns in what the database differs from the one that was here last; "" in nothing.
func (e *Engine) compareMark(ctx context.Context, q querier) (evidence string, err error) {
	if evidence, err = e.compareServer(ctx, q); err != nil || evidence != "" {
		return evidence, err
	}
	table, err := readTable(ctx, q)
	if err != nil || table.noted == "" || table.noted == table.oid {
		return "", err
	}
	return fmt.Sprintf("a dump was put back in the place of the database: its table database_mark had OID %s, and has %s", table.noted, table.oid), nil
}

// compareServer compares the row of the mark.
func (e *Engine) compareServer(ctx context.Context, q querier) (evidence string, err error) {
	is, known, err := readMark(ctx, q)
	if err != nil || !known {
		return "", err
	}
	was, found, err := storedMark(ctx, q)
	switch {
	case err != nil || !found:
		return "", err
	case was.id != is.id:
		return fmt.Sprintf("the database was copied here: it was database %s (system identifier/OID), and is %s", was.id, is.id), nil
	case was.timeline != is.timeline:
		return fmt.Sprintf("the database server was recovered or promoted: it was on timeline %d, and is on %d", was.timeline, is.timeline), nil
	}
	return "", nil
}

// compareClock returns that the server's clock is far ahead of what the database has seen; "" when
// it is not.
func (e *Engine) compareClock(ctx context.Context) (evidence string, err error) {
	err = e.View(ctx, func(ctx context.Context, tx bmdb.Tx) error {
		var seen int64
		err := tx.QueryRowContext(ctx, "SELECT clock FROM database_mark").Scan(&seen)
		evidence = bmdb.Leapt(time.UnixMicro(seen).UTC(), tx.Now())
		return err
	})
	return evidence, err
}

// Restored implements bmdb.Engine.
func (e *Engine) Restored(ctx context.Context) (evidence string, err error) {
	is, known, err := readMark(ctx, e.transactions)
	if err != nil {
		return "", classify(err)
	}
	if !known {
		e.logger.WarnContext(ctx, "the database server does not tell who it is: a restored or copied database will not be recognised")
		e.marked.Store(true)
		return "", nil
	}
	if err = e.storeMark(ctx, is, false); err == nil {
		evidence, err = e.compareMark(ctx, e.transactions)
	}
	switch {
	case err == nil && evidence == "":
		evidence, err = e.compareClock(ctx)
	case err == nil: // with an instant of its own, where it is another failover than the one before
		err = e.transactions.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return e.noteRestored(ctx, conn.Conn(), evidence) })
	}
	if err != nil {
		return "", classify(err)
	}
	e.marked.Store(true)
	_, err = e.makePartitions(ctx)
	return evidence, classify(err)
}

// AcceptRestore implements bmdb.Engine.
func (e *Engine) AcceptRestore(ctx context.Context) error {
	is, known, err := readMark(ctx, e.transactions)
	if err != nil || !known {
		return classify(err)
	}
	return e.storeMark(ctx, is, true)
}

// storeMark writes the mark; one that is there stays, unless it is to be replaced. A mark of an
// older version gets the comment that it lacks, from whoever owns the table. Without it a dump that
// is put back in place is not recognised.
func (e *Engine) storeMark(ctx context.Context, m mark, replace bool) error {
	table, err := readTable(ctx, e.transactions)
	if err != nil {
		return classify(err)
	}
	comments := table.owned && table.noted == "" || replace && table.noted != "" && table.noted != table.oid
	return e.Update(ctx, func(ctx context.Context, tx bmdb.Tx) error {
		if replace {
			if _, err := tx.ExecContext(ctx, "DELETE FROM database_mark"); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO database_mark (id, clock, counter)
			SELECT $1, $2, $3 WHERE NOT EXISTS (SELECT 1 FROM database_mark) ON CONFLICT (id) DO NOTHING`, m.id, tx.Now().UnixMicro(), m.timeline)
		if err == nil && comments {
			_, err = tx.ExecContext(ctx, fmt.Sprintf("COMMENT ON TABLE database_mark IS '%s%s'", tableNote, table.oid))
		}
		return err
	})
}
