package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
)

const (
	// daysAhead is for how many days partitions are made ahead of time.
	daysAhead = 7
	// partitionPrefix is followed by the day, as 20060102.
	partitionPrefix = "history_p"
	dayLayout       = "20060102"
	day             = 24 * time.Hour
	// partitionPatience is how long making or removing a partition waits for those who use history.
	// Everybody else waits behind it.
	partitionPatience = "200ms"
)

// PruneHistory implements bmdb.Engine: it drops the partitions all of whose rows are older than
// before, and says how many rows they had, by the server's estimate, at least one; and it makes the
// partitions of the coming days. What is in no partition of a day is removed in batches of limit
// rows. A partition that somebody is reading is left for the next time.
func (e *Engine) PruneHistory(ctx context.Context, before time.Time, limit int) (n int, err error) {
	days, err := e.makePartitions(ctx)
	if err != nil {
		return 0, err
	}
	for _, p := range days {
		if p.day.Add(day).After(before) {
			continue
		}
		err := e.dropPartition(ctx, p.name)
		switch code := codeOf(err); {
		case err == nil:
			n += p.rows
		case code == codeLockTimeout, code == codeDeadlock, code == codeUndefinedTable:
			e.logger.DebugContext(ctx, "history is being read, or was removed by somebody else", slog.String("partition", p.name))
		default:
			return n, fmt.Errorf("remove the history of %s: %w", p.day.Format(time.DateOnly), err)
		}
	}
	removed, err := bmdb.Exec(ctx, e, pruneDefaultRows, before.UnixMicro(), limit)
	if err != nil {
		err = fmt.Errorf("remove old history: %w", err)
	}
	return n + removed, err
}

// pruneDefaultRows removes old rows that no partition was there for. It names each row by all of
// the one index that there is: by its ID alone, each has the whole index walked, and a copy from
// SQLite has put months of history there.
const pruneDefaultRows = `DELETE FROM history_default WHERE (subject, id) IN (SELECT subject, id FROM history_default WHERE at < $1 LIMIT $2)`

// partition is one day of history.
type partition struct {
	name string
	day  time.Time
	rows int
}

func (e *Engine) partitions(ctx context.Context) (list []partition, err error) {
	type child struct {
		Name string
		Rows int
	}
	var children []child
	err = e.View(ctx, func(ctx context.Context, tx bmdb.Tx) error {
		children, err = query[child](ctx, tx, `SELECT c.relname, CAST(greatest(c.reltuples, 1) AS BIGINT) FROM pg_inherits i
			JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = CAST('history' AS REGCLASS) ORDER BY c.relname`)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the partitions of history: %w", err)
	}
	for _, c := range children {
		if day, err := time.Parse(partitionPrefix+dayLayout, c.Name); err == nil {
			list = append(list, partition{c.Name, day, c.Rows})
		}
	}
	return list, nil
}

func (e *Engine) dropPartition(ctx context.Context, name string) error {
	return e.Update(ctx, func(ctx context.Context, tx bmdb.Tx) error {
		if _, err := tx.ExecContext(ctx, "SET LOCAL lock_timeout = '"+partitionPatience+"'"); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "DROP TABLE "+name)
		return err
	})
}

// makePartitions makes those of today and of the coming days that are not there, and returns those
// that were there before. A day whose partition cannot be made has its rows in the default one; as
// long as it has, its partition cannot be made, and those of other days can.
func (e *Engine) makePartitions(ctx context.Context) (there []partition, err error) {
	if there, err = e.partitions(ctx); err != nil {
		return nil, err
	}
	now, err := e.now(ctx, &transaction{pool: e.transactions})
	if err != nil {
		return nil, err
	}
	today := now.UTC().Truncate(day)
	for i := range daysAhead {
		from := today.Add(time.Duration(i) * day)
		name := partitionPrefix + from.Format(dayLayout)
		if slices.ContainsFunc(there, func(p partition) bool { return p.name == name }) {
			continue
		}
		if err := e.makePartition(ctx, name, from); err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			e.logger.WarnContext(ctx, "a partition of history could not be made; its rows go to the default one", slog.String("partition", name),
				slog.Any("err", err))
		}
	}
	return there, nil
}

// makePartition attaches a table that was made beside: that lets everybody go on writing.
func (e *Engine) makePartition(ctx context.Context, name string, from time.Time) error {
	lower, upper := from.UnixMicro(), from.Add(day).UnixMicro()
	err := e.Update(ctx, func(ctx context.Context, tx bmdb.Tx) error {
		for _, statement := range []string{
			"SET LOCAL lock_timeout = '" + partitionPatience + "'",
			fmt.Sprintf("CREATE TABLE %s (LIKE history INCLUDING DEFAULTS, CHECK (at >= %d AND at < %d))", name, lower, upper),
			fmt.Sprintf("ALTER TABLE history ATTACH PARTITION %s FOR VALUES FROM (%d) TO (%d)", name, lower, upper),
		} {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
	if code := codeOf(err); code == codeDuplicateTable || code == codeDuplicateKey {
		return nil // somebody else makes it
	}
	return err
}
