package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/ironherd/ironherd/internal/fleet"
)

//go:embed migrations/*.sql
var migrations embed.FS

func (e *Engine) migrations() (*goose.Provider, error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	// A row with a lease keeps two of us apart, and not an advisory lock, which not every compatible
	// server has.
	locker, err := lock.NewPostgresTableLocker(lock.WithTableLockTimeout(time.Second, 60))
	if err != nil {
		return nil, err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, e.transactions.sql, files, goose.WithLocker(locker))
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	return p, nil
}

// Migrate implements bmdb.Engine. Each migration is one transaction, or may be run again wherever
// it was interrupted. It is safe while others run, of this version or of the one before, and while
// others migrate. KindTemporary when a table that must be changed is in use for all of a minute.
//
// It also makes the partitions of history, so that a database into which another one is copied has
// them before it has rows.
func (e *Engine) Migrate(ctx context.Context) error {
	have, want, err := e.Schema(ctx)
	if err != nil || have > want {
		return err
	}
	if have < want {
		if err := e.upgrade(ctx); err != nil {
			if ctx.Err() != nil { // the failure may be one of a transaction that the stop has undone
				err = errors.Join(context.Cause(ctx), err)
			}
			if codeOf(err) == codeDuplicateTable {
				err = fleet.Errorf(fleet.KindConflict, "the database may have what only a newer schema has, as after a dump of an older release was put back over it: "+
					"put the dump into an emptied schema, or into a new database: %w", err)
			}
			return fmt.Errorf("migrate the database: %w", classify(err))
		}
	}
	_, err = e.makePartitions(ctx)
	return classify(err)
}

// upgradeFor is for how long a migration is tried again that meets others.
const upgradeFor = time.Minute

// upgrade runs the migrations that are missing. Those that change what a commit locks get into its
// way, and it into theirs, as long as others work: then the migration is undone, and tried again.
// So is one whose connection was gone before anything was sent.
func (e *Engine) upgrade(ctx context.Context) error {
	p, err := e.migrations()
	if err != nil {
		return err
	}
	over, cancel := context.WithTimeout(ctx, upgradeFor)
	defer cancel()
	for {
		_, err := p.Up(ctx)
		if err == nil || codeOf(err) != codeLockTimeout && !undoneByOthers(err) && !neverSent(err) || over.Err() != nil {
			return err
		}
		e.logger.InfoContext(ctx, "a migration met others, or its connection was gone before it began: trying again", slog.Any("err", err))
		wait(ctx, time.Duration(rand.Int64N(int64(e.options.Lease/10)))) //nolint:gosec // jitter
		if ctx.Err() != nil {
			return err
		}
	}
}

// Schema implements bmdb.Engine. It changes nothing.
func (e *Engine) Schema(ctx context.Context) (have, want int64, err error) {
	p, err := e.migrations()
	if err != nil {
		return 0, 0, err
	}
	for _, s := range p.ListSources() {
		want = max(want, s.Version)
	}
	var there bool
	err = e.transactions.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", goose.DefaultTablename).Scan(&there)
	if err == nil && there {
		err = e.transactions.QueryRow(ctx, "SELECT COALESCE(max(version_id), 0) FROM "+goose.DefaultTablename).Scan(&have)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read the schema version of the database: %w", classify(err))
	}
	if have == 0 {
		return 0, want, e.empty(ctx)
	}
	return have, want, nil
}

// empty fails when a database without a schema of ours has tables of somebody else, which it would
// be mixed up with.
func (e *Engine) empty(ctx context.Context) error {
	var table string
	err := e.transactions.QueryRow(ctx, `SELECT COALESCE(min(tablename), '') FROM pg_tables
		WHERE schemaname = current_schema() AND tablename NOT LIKE 'goose%'`).Scan(&table)
	if err != nil {
		return fmt.Errorf("look whether the database is empty: %w", classify(err))
	}
	if table != "" {
		return fleet.Errorf(fleet.KindInvalid, "the database is not empty (it has a table %s) and has no schema of ours: use a database, or a schema (search_path), of its own",
			table)
	}
	return nil
}
