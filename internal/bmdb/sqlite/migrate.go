package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/pressly/goose/v3"

	"github.com/ironherd/ironherd/internal/fleet"
)

//go:embed migrations/*.sql
var migrations embed.FS

func migrationsOf(db *sql.DB) (*goose.Provider, error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, files)
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	return p, nil
}

// Migrate implements bmdb.Engine. Each migration is one transaction.
func (e *Engine) Migrate(ctx context.Context) error {
	p, err := migrationsOf(e.pool)
	if err != nil {
		return err
	}
	if _, err := p.Up(ctx); err != nil {
		if ctx.Err() != nil { // the failure may be one of a transaction that the stop has undone
			err = errors.Join(context.Cause(ctx), err)
		}
		return fmt.Errorf("migrate database %s: %w", e.path, err)
	}
	return nil
}

// Schema implements bmdb.Engine. It changes nothing. KindInvalid when the file has tables of
// somebody else.
func (e *Engine) Schema(ctx context.Context) (have, want int64, err error) {
	if have, want, err = schemaOf(ctx, e.pool); err != nil {
		return 0, 0, fmt.Errorf("read the schema version of %s: %w", e.path, err)
	}
	return have, want, nil
}

// SchemaOf returns the schema version of the database in a file, which it leaves as it is, and the
// one that this binary wants. have is 0 when the file has no tables, and it is KindInvalid when it
// has those of somebody else. KindNotFound when there is no file.
func SchemaOf(ctx context.Context, path string) (have, want int64, err error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return 0, 0, fleet.Errorf(fleet.KindNotFound, "there is no database at %s", path)
	}
	file, err := locate(path)
	if err != nil {
		return 0, 0, err
	}
	err = withFile(ctx, file, func(db *sql.DB) error {
		have, want, err = schemaOf(ctx, db)
		return err
	})
	if err != nil {
		return 0, 0, classify(path, err)
	}
	return have, want, nil
}

// schemaOf asks in its own words: goose would make its table to find nothing in it.
func schemaOf(ctx context.Context, db *sql.DB) (have, want int64, err error) {
	p, err := migrationsOf(db)
	if err != nil {
		return 0, 0, err
	}
	for _, s := range p.ListSources() {
		want = max(want, s.Version)
	}
	var there bool
	err = db.QueryRowContext(ctx, "SELECT count(*) > 0 FROM sqlite_schema WHERE name = $1", goose.DefaultTablename).Scan(&there)
	if err == nil && there {
		err = db.QueryRowContext(ctx, "SELECT COALESCE(max(version_id), 0) FROM "+goose.DefaultTablename).Scan(&have)
	}
	if err != nil || have != 0 {
		return have, want, err
	}
	return 0, want, empty(ctx, db)
}

// empty fails when a file without a schema of ours has tables of somebody else, which it would be
// mixed up with.
func empty(ctx context.Context, db *sql.DB) error {
	var table string
	err := db.QueryRowContext(ctx, `SELECT COALESCE(min(name), '') FROM sqlite_schema
		WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\' AND name NOT LIKE 'goose%'`).Scan(&table)
	if err == nil && table != "" {
		err = fleet.Errorf(fleet.KindInvalid, "it belongs to another program (it has a table %s): name a file of its own as database.path", table)
	}
	return err
}
