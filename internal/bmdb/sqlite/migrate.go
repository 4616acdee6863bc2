package sqlite

import (
	"context"
	"embed"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

func (e *Engine) migrations() (*goose.Provider, error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, e.pool, files)
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	return p, nil
}

// Migrate implements bmdb.Engine. Each migration is one transaction.
func (e *Engine) Migrate(ctx context.Context) error {
	p, err := e.migrations()
	if err != nil {
		return err
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate database %s: %w", e.path, err)
	}
	return nil
}

// Schema implements bmdb.Engine.
func (e *Engine) Schema(ctx context.Context) (have, want int64, err error) {
	p, err := e.migrations()
	if err != nil {
		return 0, 0, err
	}
	if have, want, err = p.GetVersions(ctx); err != nil {
		return 0, 0, fmt.Errorf("read the schema version of %s: %w", e.path, err)
	}
	return have, want, nil
}
