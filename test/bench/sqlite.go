package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
)

// sqliteCycles compares lease cycles on SQLite with the statements that are the least for the same effect, on the same driver, in both
// settings of synchronous.
func sqliteCycles(ctx context.Context, b *bench) error {
	dir, err := os.MkdirTemp(".", "bench-") // a real disk; the temporary directory may be memory
	if err != nil {
		return err
	}
	err = errors.Join(b.sqliteSetting(ctx, filepath.Join(dir, "full"), false), b.sqliteSetting(ctx, filepath.Join(dir, "off"), true))
	return errors.Join(err, os.RemoveAll(dir))
}

func (b *bench) sqliteSetting(ctx context.Context, dir string, unsynced bool) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	engine, err := sqlite.Open(ctx, filepath.Join(dir, "bmdb"), sqlite.Options{Unsynced: unsynced})
	if err != nil {
		return err
	}
	if err := engine.Migrate(ctx); err != nil {
		return errors.Join(err, engine.Close())
	}
	db, err := bmdb.Open(ctx, engine, bmdb.Options{})
	if err != nil {
		return err
	}
	if _, err := makeFleet(ctx, db, b.machines); err != nil {
		return err
	}
	session, err := startSession(ctx, db, "initializer")
	if err != nil {
		return err
	}
	raw, err := b.rawSQLite(ctx, filepath.Join(dir, "raw"), unsynced)
	if err != nil {
		return err
	}
	ours := &cycler{db: db, session: session, batch: b.batch, hold: b.machines / 2}
	var our, theirs []figures
	for range b.rounds {
		f, err := timed(func() (int, error) { return ours.run(ctx, time.Now().Add(b.duration), 0) })
		if err != nil {
			return err
		}
		our = append(our, f)
		if f, err = timed(func() (int, error) { return raw.run(ctx, time.Now().Add(b.duration)) }); err != nil {
			return err
		}
		theirs = append(theirs, f)
		b.say("SQLite, unsynced %t: ours %s/s, raw %s/s", unsynced, number(our[len(our)-1].rate()), number(f.rate()))
	}
	setting := "FULL"
	if unsynced {
		setting = "OFF"
	}
	ratio := median(ratios(our, theirs, figures.rate))
	b.table.add(row{
		what: fmt.Sprintf("SQLite, synchronous %s, batch %d: lease cycles beside raw statements", setting, b.batch), goal: "≥ 0.5×",
		ours: number(median(pick(our, figures.rate))) + "/s", reference: number(median(pick(theirs, figures.rate))) + "/s", ratio: number(ratio),
		met: yes(ratio >= 0.5),
	})
	if err := b.sound(ctx, db); err != nil {
		return err
	}
	return errors.Join(raw.db.Close(), db.Close())
}

func timed(do func() (int, error)) (f figures, err error) {
	began := time.Now()
	f.ops, err = do()
	f.wall = time.Since(began)
	return f, err
}

// rawSQLite is the least: what is due in an order, who holds it, an epoch, and a row of history for each start and each end.
type rawSQLite struct {
	db    *sql.DB
	conn  *sql.Conn
	batch int
	// The statements, prepared once.
	begin, commit, due, take, free, note *sql.Stmt
}

func (b *bench) rawSQLite(ctx context.Context, path string, unsynced bool) (*rawSQLite, error) {
	synchronous := "FULL"
	if unsynced {
		synchronous = "OFF"
	}
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)&_pragma=synchronous("+synchronous+")&_pragma=cache_size(-65536)")
	if err != nil {
		return nil, err
	}
	r := &rawSQLite{db: db, batch: b.batch}
	if r.conn, err = db.Conn(ctx); err != nil {
		return nil, err
	}
	for _, s := range []string{
		"CREATE TABLE work (id TEXT PRIMARY KEY, due_at BIGINT, epoch BIGINT, session TEXT) WITHOUT ROWID",
		"CREATE INDEX work_due ON work (due_at, id)",
		"CREATE TABLE history (id INTEGER PRIMARY KEY, subject TEXT, at BIGINT, epoch BIGINT, event TEXT, session TEXT)",
		"CREATE INDEX history_subject ON history (subject, id)",
		fmt.Sprintf(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
			INSERT INTO work SELECT lower(hex(randomblob(16))), i, 0, '' FROM n`, b.machines),
	} {
		if _, err := r.conn.ExecContext(ctx, s); err != nil {
			return nil, err
		}
	}
	for statement, text := range map[**sql.Stmt]string{
		&r.begin: "BEGIN IMMEDIATE", &r.commit: "COMMIT",
		&r.due:  "SELECT id, due_at FROM work WHERE due_at <= ? ORDER BY due_at, id LIMIT ?",
		&r.take: "UPDATE work SET epoch = epoch + 1, session = ?, due_at = ? WHERE id = ?",
		&r.free: "UPDATE work SET session = '', due_at = ? WHERE id = ? AND session = ?",
		&r.note: "INSERT INTO history (subject, at, epoch, event, session) VALUES (?, ?, ?, ?, ?)",
	} {
		if *statement, err = r.conn.PrepareContext(ctx, text); err != nil { //nolint:sqlclosecheck // closed with the database
			return nil, err
		}
	}
	return r, nil
}

// run does cycles until the time is over: one transaction claims a batch, one ends it.
func (r *rawSQLite) run(ctx context.Context, until time.Time) (cycles int, err error) {
	for time.Now().Before(until) {
		due := make(map[string]int64, r.batch)
		for _, event := range []string{"started", "finished"} {
			if err := r.half(ctx, event, due); err != nil {
				return 0, err
			}
		}
		cycles += len(due)
	}
	return cycles, nil
}

// half is one of the two transactions of a batch.
func (r *rawSQLite) half(ctx context.Context, event string, due map[string]int64) error {
	if _, err := r.begin.ExecContext(ctx); err != nil {
		return err
	}
	now := time.Now().UnixMicro()
	if event == "started" {
		if err := r.look(ctx, now, due); err != nil {
			return err
		}
	}
	for id, at := range due {
		var err error
		if event == "started" {
			_, err = r.take.ExecContext(ctx, "s", now+5_000_000, id)
		} else {
			_, err = r.free.ExecContext(ctx, at, id, "s")
		}
		if err != nil {
			return err
		}
		if _, err := r.note.ExecContext(ctx, id, now, 1, event, "s"); err != nil {
			return err
		}
	}
	_, err := r.commit.ExecContext(ctx)
	return err
}

func (r *rawSQLite) look(ctx context.Context, now int64, due map[string]int64) error {
	rows, err := r.due.QueryContext(ctx, now, r.batch)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id string
		var at int64
		if err := rows.Scan(&id, &at); err != nil {
			return err
		}
		due[id] = at
	}
	return rows.Err()
}
