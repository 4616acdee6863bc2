package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
)

// sqliteCycles compares lease cycles on SQLite, in both settings of synchronous, with raw
// statements on the same driver: the least that has the same durable effect.
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
	if err := makeFleet(ctx, db, b.machines); err != nil {
		return err
	}
	session, err := startSession(ctx, db, "initializer")
	if err != nil {
		return err
	}
	setting := "FULL"
	if unsynced {
		setting = "OFF"
	}
	raw, err := b.rawSQLite(ctx, filepath.Join(dir, "raw"), setting)
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
		b.say("SQLite, synchronous %s: ours %s/s", setting, number(f.rate()))
		if f, err = timed(func() (int, error) { return raw.run(ctx, time.Now().Add(b.duration)) }); err != nil {
			return err
		}
		theirs = append(theirs, f)
		b.say("SQLite, synchronous %s: raw %s/s", setting, number(f.rate()))
	}
	b.table.add(row{
		what: fmt.Sprintf("SQLite, synchronous %s, batch %d: lease cycles beside the least for the same effect: rate", setting, b.batch), goal: noGoal.text,
		ours: number(median(pick(our, figures.rate))) + "/s", reference: number(median(pick(theirs, figures.rate))) + "/s",
		ratio: number(median(ratios(our, theirs, figures.rate))),
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

// What is due in an order, who holds it, an epoch, and a row of history for each end, which says
// when the work started. Parameters of leastStart and leastEnd: ?1 subject, ?2 due, ?3 now.
var (
	leastSchema = []string{
		"CREATE TABLE work (id TEXT PRIMARY KEY, due_at BIGINT, epoch BIGINT, session TEXT, since BIGINT) WITHOUT ROWID",
		"CREATE INDEX work_due ON work (due_at, id)",
		"CREATE TABLE history (id INTEGER PRIMARY KEY, subject TEXT, at BIGINT, epoch BIGINT, started_at BIGINT, event TEXT, session TEXT)",
		"CREATE INDEX history_subject ON history (subject, id)",
	}
	leastStart = []string{
		"UPDATE work SET epoch = epoch + 1, session = 's', since = ?3, due_at = ?3 + 5000000 WHERE id = ?1 AND ?2 > 0",
	}
	leastEnd = []string{
		"INSERT INTO history (subject, at, epoch, started_at, event, session) " +
			"SELECT ?1, ?3, epoch, since, 'finished', session FROM work WHERE id = ?1 AND session = 's' AND ?2 > 0",
		"UPDATE work SET session = '', due_at = ?2 WHERE id = ?1 AND session = 's' AND ?3 > 0",
	}
)

// leastDue lists what is due until ?1, at most ?2 rows.
const leastDue = "SELECT id, due_at FROM work WHERE due_at <= ? ORDER BY due_at, id LIMIT ?"

// rawSQLite runs these statements.
type rawSQLite struct {
	db    *sql.DB
	conn  *sql.Conn
	batch int
	// The statements, prepared once.
	begin, commit, due *sql.Stmt
	start, end         []*sql.Stmt
}

func (b *bench) rawSQLite(ctx context.Context, path, synchronous string) (*rawSQLite, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)&_pragma=synchronous("+synchronous+")&_pragma=cache_size(-65536)")
	if err != nil {
		return nil, err
	}
	r := &rawSQLite{db: db, batch: b.batch}
	if r.conn, err = db.Conn(ctx); err != nil {
		return nil, err
	}
	fill := fmt.Sprintf(`INSERT INTO work WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
		SELECT lower(hex(randomblob(18))), i, 0, '', 0 FROM n`, b.machines)
	for _, s := range append(slices.Clone(leastSchema), fill) {
		if _, err := r.conn.ExecContext(ctx, s); err != nil {
			return nil, err
		}
	}
	return r, r.prepare(ctx)
}

func (r *rawSQLite) prepare(ctx context.Context) (err error) {
	for statement, text := range map[**sql.Stmt]string{&r.begin: "BEGIN IMMEDIATE", &r.commit: "COMMIT", &r.due: leastDue} {
		*statement, err = r.conn.PrepareContext(ctx, text) //nolint:sqlclosecheck // closed with the database
		if err != nil {
			return err
		}
	}
	for list, texts := range map[*[]*sql.Stmt][]string{&r.start: leastStart, &r.end: leastEnd} {
		for _, text := range texts {
			s, err := r.conn.PrepareContext(ctx, text) //nolint:sqlclosecheck // closed with the database
			if err != nil {
				return err
			}
			*list = append(*list, s)
		}
	}
	return nil
}

// run does cycles until the time is over: one transaction claims a batch, one ends it.
func (r *rawSQLite) run(ctx context.Context, until time.Time) (cycles int, err error) {
	for time.Now().Before(until) {
		due := make(map[string]int64, r.batch)
		if err := r.half(ctx, true, due); err != nil {
			return 0, err
		}
		if err := r.half(ctx, false, due); err != nil {
			return 0, err
		}
		cycles += len(due)
	}
	return cycles, nil
}

// half is one of the two transactions of a batch.
func (r *rawSQLite) half(ctx context.Context, starting bool, due map[string]int64) error {
	if _, err := r.begin.ExecContext(ctx); err != nil {
		return err
	}
	now, statements := time.Now().UnixMicro(), r.end
	if starting {
		statements = r.start
		if err := r.look(ctx, now, due); err != nil {
			return err
		}
	}
	for id, at := range due {
		for _, s := range statements {
			if _, err := s.ExecContext(ctx, id, at, now); err != nil {
				return err
			}
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
