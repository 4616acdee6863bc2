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

// sqliteCycles compares lease cycles on SQLite, in both settings of synchronous, with raw
// statements on the same driver: with the writes of a cycle on the same schema, and with the least
// that has the same durable effect.
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
	var raws []*rawSQLite
	for _, schema := range []rawSchemaSQLite{sameSchema, leastSchema} {
		raw, err := b.rawSQLite(ctx, filepath.Join(dir, schema.name), schema, unsynced)
		if err != nil {
			return err
		}
		raws = append(raws, raw)
	}
	ours := &cycler{db: db, session: session, batch: b.batch, hold: b.machines / 2}
	our, theirs := []figures(nil), make([][]figures, len(raws))
	for range b.rounds {
		f, err := timed(func() (int, error) { return ours.run(ctx, time.Now().Add(b.duration), 0) })
		if err != nil {
			return err
		}
		our = append(our, f)
		b.say("SQLite, unsynced %t: ours %s/s", unsynced, number(f.rate()))
		for i, raw := range raws {
			if f, err = timed(func() (int, error) { return raw.run(ctx, time.Now().Add(b.duration)) }); err != nil {
				return err
			}
			theirs[i] = append(theirs[i], f)
			b.say("SQLite, unsynced %t: raw, %s: %s/s", unsynced, raw.schema.name, number(f.rate()))
		}
	}
	b.addSQLite(unsynced, our, raws, theirs)
	if err := b.sound(ctx, db); err != nil {
		return err
	}
	for _, raw := range raws {
		if err := raw.db.Close(); err != nil {
			return err
		}
	}
	return db.Close()
}

func (b *bench) addSQLite(unsynced bool, our []figures, raws []*rawSQLite, theirs [][]figures) {
	setting := "FULL"
	if unsynced {
		setting = "OFF"
	}
	for i, raw := range raws {
		ratio := median(ratios(our, theirs[i], figures.rate))
		r := row{
			what: fmt.Sprintf("SQLite, synchronous %s, batch %d: lease cycles beside raw statements, %s", setting, b.batch, raw.schema.what),
			ours: number(median(pick(our, figures.rate))) + "/s", reference: number(median(pick(theirs[i], figures.rate))) + "/s", ratio: number(ratio),
		}
		if i == 0 {
			r.goal, r.met = "≥ 0.5×", yes(ratio >= 0.5)
		}
		b.table.add(r)
	}
}

func timed(do func() (int, error)) (f figures, err error) {
	began := time.Now()
	f.ops, err = do()
	f.wall = time.Since(began)
	return f, err
}

// rawSchemaSQLite is a schema and the statements of a cycle on it. Parameters: ?1 subject, ?2 due,
// ?3 now.
type rawSchemaSQLite struct {
	name, what string
	// ours: the tables are those of the BMDB.
	ours bool
	fill []string
	// due lists what is due until ?1, at most ?2 rows; start and end are run for each work.
	due        string
	start, end []string
}

// sameSchema: the rows that a cycle writes, where it writes them.
var sameSchema = rawSchemaSQLite{
	name: "same", what: "the writes of a cycle on the same schema", ours: true,
	fill: []string{
		"INSERT INTO agenda (subject, process, provider, due_at) SELECT id, 'agent-start', 'p', i FROM fleet",
		"INSERT INTO lane (subject, lane, epoch, session, process, since, note) SELECT id, 'host', 0, '', '', 0, '' FROM fleet",
		"INSERT INTO machine_state (machine, provider, state, reason, since, policy) SELECT id, 'p', 'provided', 'waits', 0, 1 FROM fleet",
	},
	due: "SELECT subject, due_at FROM agenda WHERE process = 'agent-start' AND due_at <= ? ORDER BY due_at, subject LIMIT ?",
	start: []string{
		"UPDATE lane SET epoch = epoch + 1, session = 's', process = 'agent-start', since = ?3 WHERE subject = ?1 AND lane = 'host' AND ?2 > 0",
		`INSERT INTO history (subject, at, actor, process, lane, epoch, edge, event, detail, retry_at, session)
			SELECT ?1, ?3, 'i@here', 'agent-start', 'host', epoch, 'start', 'started', 'no agent runs', 0, 's' FROM lane
			WHERE subject = ?1 AND lane = 'host' AND ?2 > 0`,
		"UPDATE agenda SET due_at = ?3 + 5000000 WHERE subject = ?1 AND process = 'agent-start' AND ?2 > 0",
		"UPDATE machine_state SET state = 'starting', reason = 'is being started', since = ?3 WHERE machine = ?1 AND ?2 > 0",
	},
	end: []string{
		"UPDATE lane SET session = '', process = '', note = '' WHERE subject = ?1 AND lane = 'host' AND session = 's' AND ?2 > 0 AND ?3 > 0",
		`INSERT INTO history (subject, at, actor, process, lane, epoch, edge, event, detail, retry_at, session)
			SELECT ?1, ?3, 'i@here', 'agent-start', 'host', epoch, 'end', 'finished', '', 0, 's' FROM lane
			WHERE subject = ?1 AND lane = 'host' AND ?2 > 0`,
		"UPDATE agenda SET due_at = ?2 WHERE subject = ?1 AND process = 'agent-start' AND ?3 > 0",
		"UPDATE machine_state SET state = 'provided', reason = 'waits', since = ?3 WHERE machine = ?1 AND ?2 > 0",
	},
}

// leastSchema: what is due in an order, who holds it, an epoch, and a row of history for each start
// and each end.
var leastSchema = rawSchemaSQLite{
	name: "least", what: "the least for the same effect",
	fill: []string{
		"CREATE TABLE work (id TEXT PRIMARY KEY, due_at BIGINT, epoch BIGINT, session TEXT) WITHOUT ROWID",
		"CREATE INDEX work_due ON work (due_at, id)",
		"CREATE TABLE history (id INTEGER PRIMARY KEY, subject TEXT, at BIGINT, epoch BIGINT, event TEXT, session TEXT)",
		"CREATE INDEX history_subject ON history (subject, id)",
		"INSERT INTO work SELECT id, i, 0, '' FROM fleet",
	},
	due: "SELECT id, due_at FROM work WHERE due_at <= ? ORDER BY due_at, id LIMIT ?",
	start: []string{
		"UPDATE work SET epoch = epoch + 1, session = 's', due_at = ?3 + 5000000 WHERE id = ?1 AND ?2 > 0",
		"INSERT INTO history (subject, at, epoch, event, session) SELECT ?1, ?3, epoch, 'started', 's' FROM work WHERE id = ?1 AND ?2 > 0",
	},
	end: []string{
		"UPDATE work SET session = '', due_at = ?2 WHERE id = ?1 AND session = 's' AND ?3 > 0",
		"INSERT INTO history (subject, at, epoch, event, session) SELECT ?1, ?3, epoch, 'finished', 's' FROM work WHERE id = ?1 AND ?2 > 0",
	},
}

// rawSQLite runs the statements of a schema.
type rawSQLite struct {
	db     *sql.DB
	conn   *sql.Conn
	batch  int
	schema rawSchemaSQLite
	// The statements, prepared once.
	begin, commit, due *sql.Stmt
	start, end         []*sql.Stmt
}

func (b *bench) rawSQLite(ctx context.Context, path string, schema rawSchemaSQLite, unsynced bool) (*rawSQLite, error) {
	if schema.ours {
		engine, err := sqlite.Open(ctx, path, sqlite.Options{Unsynced: unsynced})
		if err != nil {
			return nil, err
		}
		if err := errors.Join(engine.Migrate(ctx), engine.Close()); err != nil {
			return nil, err
		}
	}
	synchronous := "FULL"
	if unsynced {
		synchronous = "OFF"
	}
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)&_pragma=synchronous("+synchronous+")&_pragma=cache_size(-65536)")
	if err != nil {
		return nil, err
	}
	r := &rawSQLite{db: db, batch: b.batch, schema: schema}
	if r.conn, err = db.Conn(ctx); err != nil {
		return nil, err
	}
	fleet := fmt.Sprintf(`CREATE TEMP TABLE fleet AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
		SELECT lower(hex(randomblob(18))) AS id, i FROM n`, b.machines)
	for _, s := range append([]string{fleet}, schema.fill...) {
		if _, err := r.conn.ExecContext(ctx, s); err != nil {
			return nil, err
		}
	}
	return r, r.prepare(ctx)
}

func (r *rawSQLite) prepare(ctx context.Context) (err error) {
	for statement, text := range map[**sql.Stmt]string{&r.begin: "BEGIN IMMEDIATE", &r.commit: "COMMIT", &r.due: r.schema.due} {
		*statement, err = r.conn.PrepareContext(ctx, text) //nolint:sqlclosecheck // closed with the database
		if err != nil {
			return err
		}
	}
	for list, texts := range map[*[]*sql.Stmt][]string{&r.start: r.schema.start, &r.end: r.schema.end} {
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
