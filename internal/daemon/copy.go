package daemon

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/transfer"
	"github.com/ironherd/ironherd/internal/fleet"
)

// CopiedTable is what became of one table.
type CopiedTable struct {
	Name   string `yaml:"name"`
	Rows   int64  `yaml:"rows"`
	Digest string `yaml:"digest"`
}

// CopyDatabase copies a fleet between databases that URLs name: sqlite:FILE or postgres://….
// Neither database may be in use, the source must have the schema of this binary, and the target
// must be new. When a schema is another one, the copy is KindConflict, and migrates neither.
// CopyDatabase calls progress after each batch. replaced counts the texts that the target could not
// store as they were.
func CopyDatabase(ctx context.Context, from, to string, progress func(table string, rows, of int64)) (tables []CopiedTable, replaced int64, err error) {
	if from == to {
		return nil, 0, fleet.Errorf(fleet.KindInvalid, "--from and --to name the same database: a copy goes into a new one")
	}
	source, err := openURL(ctx, from, isSource)
	if err != nil {
		return nil, 0, err
	}
	target, err := openURL(ctx, to, isTarget)
	if err != nil {
		return nil, 0, errors.Join(err, source.Close())
	}
	if err := target.Migrate(ctx); err != nil {
		return nil, 0, errors.Join(err, source.Close(), target.Close())
	}
	r, err := transfer.Copy(ctx, source, target, transfer.Options{From: withoutParameters(from), To: withoutParameters(to), Progress: progress})
	for _, t := range r.Tables {
		tables = append(tables, CopiedTable{Name: t.Name, Rows: t.Rows, Digest: t.Digest})
	}
	return tables, r.Replaced, err
}

// isSource refuses what nothing is copied from. An older one is not migrated on the way: a copy
// leaves its source as it is.
func isSource(name string, have, want int64) error {
	switch {
	case have == 0:
		return fleet.Errorf(fleet.KindNotFound, "there is no Bare Metal Database at %s: --from must name the database that has the fleet", name)
	case have < want:
		return fleet.Errorf(fleet.KindConflict, "the schema of %s (version %d) is older than this binary needs (version %d): "+
			"let `ironherd db migrate` bring it there first, with database in the configuration set to it", name, have, want)
	case have > want:
		return fleet.Errorf(fleet.KindConflict, "the schema of %s (version %d) is newer than this binary knows (version %d): use a newer binary", name, have, want)
	}
	return nil
}

// isTarget refuses what has the schema of another release: it is not new, whatever else it has.
func isTarget(name string, have, want int64) error {
	if have != 0 && have != want {
		return fleet.Errorf(fleet.KindConflict, "%s is not new, its schema has version %d already: a copy goes into a new database", name, have)
	}
	return nil
}

// openURL opens a database by its URL, if the version of its schema will do beside the one that is
// wanted; 0: there is no BMDB. Otherwise it leaves the database as it is.
func openURL(ctx context.Context, address string, willDo func(name string, have, want int64) error) (bmdb.Engine, error) {
	if path, ok := strings.CutPrefix(address, "sqlite:"); ok {
		have, want, err := sqlite.SchemaOf(ctx, path)
		if err != nil && fleet.KindOf(err) != fleet.KindNotFound {
			return nil, err
		}
		if err := willDo(address, have, want); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil { // of a target, as serve does
			return nil, fleet.Errorf(fleet.KindInvalid, "make the directory of the database: %w", err)
		}
		return sqlite.Open(ctx, path, sqlite.Options{})
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		// The address may hold a password, so the sentence does not quote it.
		return nil, fleet.Errorf(fleet.KindInvalid, "a database is named sqlite:FILE or postgres://user@host:port/database")
	}
	if _, secret := u.User.Password(); secret || u.Query().Has("password") || u.Query().Has("sslpassword") {
		return nil, fleet.Errorf(fleet.KindInvalid, "a password does not belong on a command line: use PGPASSWORD or ~/.pgpass, and PGSSLPASSWORD for that of a key")
	}
	engine, err := postgres.Open(ctx, address, postgres.Options{Silent: true})
	if err != nil {
		return nil, err
	}
	have, want, err := engine.Schema(ctx)
	if err == nil {
		err = willDo(withoutParameters(address), have, want)
	}
	if err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	return engine, nil
}

// withoutParameters is a URL for people, and for what a database records of its origin.
func withoutParameters(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "sqlite" {
		return address
	}
	u.RawQuery = ""
	return u.Redacted()
}
