package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
)

// Finding is one contradiction in the database.
type Finding struct {
	// Invariant by its number in the design, such as "I1".
	Invariant string `yaml:"invariant"`
	Subject   string `yaml:"subject"`
	Detail    string `yaml:"detail"`
}

// openEngine opens the configured database. SQLite is migrated at once: no other process can be using it.
func openEngine(ctx context.Context, c config.Config, o sqlite.Options) (bmdb.Engine, error) {
	if err := os.MkdirAll(filepath.Dir(c.Database.Path), 0o700); err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "make the directory of the database: %w", err)
	}
	engine, err := sqlite.Open(ctx, c.Database.Path, o)
	if err != nil {
		return nil, err
	}
	have, want, err := engine.Schema(ctx)
	if err == nil && have < want {
		err = engine.Migrate(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	return engine, nil
}

// existing opens a database that must be there.
func existing(ctx context.Context, c config.Config) (bmdb.Engine, error) {
	if _, err := os.Stat(c.Database.Path); err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "there is no database at %s", c.Database.Path)
	}
	return openEngine(ctx, c, sqlite.Options{})
}

// CheckDatabase looks for contradictions in a database that no process is using: KindInUse, naming the process, when one is.
func CheckDatabase(ctx context.Context, c config.Config) ([]Finding, error) {
	engine, err := existing(ctx, c)
	if err != nil {
		return nil, err
	}
	db, err := bmdb.Open(ctx, engine, bmdb.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	found, err := db.Check(ctx)
	if err = errors.Join(err, db.Close()); err != nil {
		return nil, fmt.Errorf("check database: %w", err)
	}
	findings := make([]Finding, len(found))
	for i, f := range found {
		findings[i] = Finding{Invariant: f.Invariant, Subject: f.Subject, Detail: f.Detail}
	}
	return findings, nil
}

// AcceptRestore makes a database that looks restored or copied the one that counts, and returns why it looked so; "" when it did
// not.
func AcceptRestore(ctx context.Context, c config.Config, actor string) (evidence string, err error) {
	engine, err := existing(ctx, c)
	if err != nil {
		return "", err
	}
	db, err := bmdb.Open(ctx, engine, bmdb.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	env, err := db.Environment(ctx)
	if err != nil || env.Restored == "" {
		return "", err
	}
	return env.Restored, db.AcceptRestore(ctx, actor)
}

// Migrate brings the schema of an existing database to the version that this binary wants, and returns the versions before and
// after.
func Migrate(ctx context.Context, c config.Config) (from, to int64, err error) {
	if _, err := os.Stat(c.Database.Path); err != nil {
		return 0, 0, fleet.Errorf(fleet.KindInvalid, "there is no database at %s", c.Database.Path)
	}
	engine, err := sqlite.Open(ctx, c.Database.Path, sqlite.Options{})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	from, to, err = engine.Schema(ctx)
	switch {
	case err != nil:
		return 0, 0, err
	case from > to:
		return 0, 0, fleet.Errorf(fleet.KindConflict,
			"the database's schema (version %d) is newer than this binary knows (version %d): use a newer binary", from, to)
	case from == to:
		return from, to, nil
	}
	return from, to, engine.Migrate(ctx)
}
