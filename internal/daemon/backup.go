package daemon

import (
	"context"
	"os"
	"path/filepath"

	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
)

// Backup copies the configured database into a new file. The control plane may run meanwhile. It is
// KindUnsupported for PostgreSQL.
func Backup(ctx context.Context, c config.Config, to string) error {
	if err := requireEmbedded(c); err != nil {
		return err
	}
	return sqlite.Backup(ctx, c.Database.Path, to)
}

// Restore puts a backup where the configuration has its database, and where none may be.
func Restore(ctx context.Context, c config.Config, backup string) error {
	if err := requireEmbedded(c); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.Database.Path), 0o700); err != nil {
		return fleet.Errorf(fleet.KindInvalid, "make the directory of the database: %w", err)
	}
	return sqlite.Restore(ctx, backup, c.Database.Path)
}

// requireEmbedded fails where the database is PostgreSQL, which has tools of its own.
func requireEmbedded(c config.Config) error {
	if c.Database.URL == "" {
		return nil
	}
	return fleet.Errorf(fleet.KindUnsupported, "this is for the embedded database: use pg_dump, or base backups, for %s (ops/database.md in the docs)", c.Database)
}
