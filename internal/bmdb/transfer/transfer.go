package transfer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// Options of a copy.
type Options struct {
	// From and To name the databases for people, without secrets.
	From, To string
	// Progress is told of each batch: how many rows of the table have been copied, of how many. Nil:
	// nobody is.
	Progress func(table string, rows, of int64)
}

// Table says what became of one.
type Table struct {
	Name string
	Rows int64
	// Digest of the rows, in the order of their keys: the same in both databases.
	Digest string
}

// Report of a copy.
type Report struct {
	Tables []Table
	// Replaced is how many texts had to be changed because the target cannot store them as they were
	// (NUL, invalid UTF-8: U+FFFD is in their place).
	Replaced int64
}

// Copy copies everything from one database to the other; the target has the schema and nothing
// else. Both engines are closed when it returns. KindInUse when the source is in use, also when
// that begins while it is copied, KindConflict when the target is not empty or the schemas differ.
func Copy(ctx context.Context, from, to bmdb.Engine, o Options) (r Report, err error) {
	defer func() { err = errors.Join(err, to.Close()) }()
	source, err := bmdb.Open(ctx, from, bmdb.Options{})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	if err := quiet(ctx, source); err != nil {
		return r, err
	}
	if err := deaf(ctx, from); err != nil {
		return r, err
	}
	if err := sameSchema(ctx, to); err != nil {
		return r, err
	}
	// First: whoever is killed from here on leaves one database that waits, and not two that act.
	undo, err := markSource(ctx, from, "copied to "+o.To)
	if err != nil {
		return r, err
	}
	committing := false
	err = from.View(ctx, func(ctx context.Context, src bmdb.Tx) error {
		return to.Update(ctx, func(ctx context.Context, dst bmdb.Tx) error {
			committing = false // it may run again
			c := copying{options: o, src: src, dst: dst, srcEngine: from.Name(), dstEngine: to.Name()}
			if err := c.run(ctx); err != nil {
				return err
			}
			r = c.report
			if err := undisturbed(ctx, from, src); err != nil {
				return err
			}
			if err := mark(ctx, dst, "copied from "+o.From); err != nil {
				return err
			}
			committing = true
			return nil
		})
	})
	switch {
	case err != nil && committing:
		return Report{}, fmt.Errorf("copy the database: whether the target has it all is not known, so the source stays marked as a copy: %w", err)
	case err != nil:
		return Report{}, fmt.Errorf("copy the database: %w", errors.Join(err, undo(context.WithoutCancel(ctx))))
	}
	return r, nil
}

// markSource marks the source as one of two databases. undo brings back what it had before.
func markSource(ctx context.Context, from bmdb.Engine, evidence string) (undo func(ctx context.Context) error, err error) {
	var at int64
	var had string
	err = from.Update(ctx, func(ctx context.Context, tx bmdb.Tx) error {
		err := tx.QueryRowContext(ctx, "SELECT at, evidence FROM restored WHERE id = 1").Scan(&at, &had)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		return mark(ctx, tx, evidence)
	})
	if err != nil {
		return nil, fmt.Errorf("mark the source as a copy: %w", err)
	}
	return func(ctx context.Context) error {
		return from.Update(ctx, func(ctx context.Context, tx bmdb.Tx) (err error) {
			if had == "" {
				_, err = tx.ExecContext(ctx, "DELETE FROM restored WHERE id = 1")
			} else {
				_, err = tx.ExecContext(ctx, "UPDATE restored SET at = $1, evidence = $2 WHERE id = 1", at, had)
			}
			return err
		})
	}, nil
}

// quiet ends the sessions that nobody extends, frees what they held, and fails when one is left
// that somebody does.
func quiet(ctx context.Context, source *bmdb.DB) error {
	if _, err := source.CollectSessions(ctx); err != nil {
		return err
	}
	live, err := source.Sessions(ctx, false)
	if err != nil {
		return err
	}
	if len(live) > 0 {
		s := live[0]
		return fleet.Errorf(fleet.KindInUse, "the source is in use, by %s on %s (pid %d) and %d more sessions: stop every control plane on it; one that was killed is waited for until %s",
			s.Component, s.Host, s.PID, len(live)-1, fleet.Instant(s.Deadline))
	}
	return nil
}

// use is what shows that somebody uses a database: live sessions, the newest session, and until
// when an agent API counts as up. That one has no session; the row of the listeners is its proof of
// life.
type use struct{ live, started, heard int64 }

func useOf(ctx context.Context, tx bmdb.Tx) (u use, err error) {
	err = tx.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM session WHERE ended_at = 0),
		(SELECT COALESCE(MAX(started_at), 0) FROM session), (SELECT COALESCE(MAX(valid_until), 0) FROM listener)`).Scan(&u.live, &u.started, &u.heard)
	return u, err
}

// deaf fails while an agent API counts as up. That of an embedded database is of no account:
// whoever has it open has it alone.
func deaf(ctx context.Context, from bmdb.Engine) error {
	if from.Properties().SingleProcess {
		return nil
	}
	return from.View(ctx, func(ctx context.Context, tx bmdb.Tx) error {
		u, err := useOf(ctx, tx)
		if err == nil && u.heard >= tx.Now().UnixMicro() {
			err = fleet.Errorf(fleet.KindInUse, "the source is in use, by an agent API: stop every control plane that has the role %s on it; one that has stopped counts until %s",
				fleet.RoleAgentAPI, fleet.Instant(time.UnixMicro(u.heard)))
		}
		return err
	})
}

// undisturbed fails when somebody began to use the source after the snapshot that was copied: a
// session or an agent API that there is, or that there was. That of an embedded database is of no
// account, as with deaf.
func undisturbed(ctx context.Context, from bmdb.Engine, snapshot bmdb.Tx) error {
	if from.Properties().SingleProcess {
		return nil
	}
	copied, err := useOf(ctx, snapshot)
	if err != nil {
		return err
	}
	return from.View(ctx, func(ctx context.Context, tx bmdb.Tx) error {
		now, err := useOf(ctx, tx)
		if err == nil && (now != copied || now.live > 0 || now.heard >= tx.Now().UnixMicro()) {
			err = fleet.Errorf(fleet.KindInUse, "a control plane was started on the source meanwhile, and the copy has nothing of what it did: stop every control plane on it, and copy again")
		}
		return err
	})
}

// sameSchema fails unless the target has the schema of this program, as the source has, which is
// open.
func sameSchema(ctx context.Context, to bmdb.Engine) error {
	have, want, err := to.Schema(ctx)
	if err == nil && have != want {
		err = fleet.Errorf(fleet.KindConflict, "the schema of the %s database has version %d, this program wants %d", to.Name(), have, want)
	}
	return err
}

// mark leaves the evidence that a database is one of two.
func mark(ctx context.Context, tx bmdb.Tx, evidence string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO restored (id, at, evidence) VALUES (1, $1, $2)
		ON CONFLICT (id) DO UPDATE SET at = excluded.at, evidence = excluded.evidence`, tx.Now().UnixMicro(),
		evidence+" at "+fleet.Instant(tx.Now()))
	return err
}

// copying is one copy, in one transaction of each engine.
type copying struct {
	options              Options
	src, dst             bmdb.Tx
	srcEngine, dstEngine string
	// there are the target's tables.
	there  []string
	report Report
}

func (c *copying) run(ctx context.Context) error {
	if err := c.know(ctx); err != nil {
		return err
	}
	for _, t := range copied {
		if err := c.wantEmpty(ctx, t.name); err != nil {
			return err
		}
	}
	for _, t := range copied {
		there, err := c.copyTable(ctx, t)
		if err != nil {
			return fmt.Errorf("table %s: %w", t.name, err)
		}
		here, err := readBack(ctx, c.dst, t)
		if err != nil {
			return fmt.Errorf("table %s: %w", t.name, err)
		}
		if here != there {
			return fmt.Errorf("table %s: the copy differs: %d rows (%s), not %d (%s)", t.name, here.Rows, here.Digest, there.Rows, there.Digest)
		}
		c.report.Tables = append(c.report.Tables, here)
	}
	for name, fill := range derived {
		if !slices.Contains(c.there, name) {
			continue
		}
		if _, err := c.dst.ExecContext(ctx, "DELETE FROM "+name); err != nil {
			return fmt.Errorf("table %s: %w", name, err)
		}
		if _, err := c.dst.ExecContext(ctx, fill); err != nil {
			return fmt.Errorf("table %s: %w", name, err)
		}
	}
	if query, ok := afterwards[c.dstEngine]; ok {
		if _, err := c.dst.ExecContext(ctx, query); err != nil {
			return err
		}
	}
	return nil
}

// know prepares both sides, and fails when either database has a table that it is not known what to
// do with.
func (c *copying) know(ctx context.Context) error {
	for _, side := range []struct {
		tx     bmdb.Tx
		engine string
	}{{c.src, c.srcEngine}, {c.dst, c.dstEngine}} {
		if query, ok := patience[side.engine]; ok {
			if _, err := side.tx.ExecContext(ctx, query); err != nil {
				return err
			}
		}
		names, err := tables(ctx, side.tx, side.engine)
		if err != nil {
			return fmt.Errorf("list the tables of the %s database: %w", side.engine, err)
		}
		for _, name := range names {
			_, isDerived := derived[name]
			known := isDerived || slices.Contains(own, name) || slices.ContainsFunc(copied, func(t table) bool { return t.name == name })
			if !known {
				return fleet.Errorf(fleet.KindConflict, "the %s database has a table %s, which is not one of ours", side.engine, name)
			}
		}
		c.there = names
	}
	return nil
}

func tables(ctx context.Context, tx bmdb.Tx, engine string) (names []string, err error) {
	rows, err := tx.QueryContext(ctx, catalog[engine])
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}

func (c *copying) wantEmpty(ctx context.Context, name string) error {
	n, err := count(ctx, c.dst, name)
	if err != nil {
		return fmt.Errorf("table %s: %w", name, err)
	}
	if n > 0 {
		return fleet.Errorf(fleet.KindConflict, "the target is not empty: %s has %d rows; a copy goes into a new database", name, n)
	}
	return nil
}

func count(ctx context.Context, tx bmdb.Tx, name string) (n int64, err error) {
	err = tx.QueryRowContext(ctx, "SELECT count(*) FROM "+name).Scan(&n)
	return n, err
}
