package daemon

import (
	"context"
	"errors"
	"net/url"
	"os"
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
// Neither database may be in use, and the target must be new. CopyDatabase calls progress after
// each batch. replaced counts the texts that the target could not store as they were.
func CopyDatabase(ctx context.Context, from, to string, progress func(table string, rows, of int64)) (tables []CopiedTable, replaced int64, err error) {
	source, err := openURL(ctx, from, true)
	if err != nil {
		return nil, 0, err
	}
	target, err := openURL(ctx, to, false)
	if err != nil {
		return nil, 0, errors.Join(err, source.Close())
	}
	if err := migrateBoth(ctx, source, target); err != nil {
		return nil, 0, errors.Join(err, source.Close(), target.Close())
	}
	r, err := transfer.Copy(ctx, source, target, transfer.Options{From: withoutParameters(from), To: withoutParameters(to), Progress: progress})
	for _, t := range r.Tables {
		tables = append(tables, CopiedTable{Name: t.Name, Rows: t.Rows, Digest: t.Digest})
	}
	return tables, r.Replaced, err
}

// migrateBoth migrates the target. It also migrates an embedded source, which nobody else can use.
func migrateBoth(ctx context.Context, source, target bmdb.Engine) error {
	if source.Properties().SingleProcess {
		if err := source.Migrate(ctx); err != nil {
			return err
		}
	}
	return target.Migrate(ctx)
}

// openURL opens a database by its URL; an embedded one that is to be read must be there.
func openURL(ctx context.Context, address string, mustExist bool) (bmdb.Engine, error) {
	if path, ok := strings.CutPrefix(address, "sqlite:"); ok {
		if _, err := os.Stat(path); err != nil && mustExist {
			return nil, fleet.Errorf(fleet.KindNotFound, "there is no database at %s", path)
		}
		return sqlite.Open(ctx, path, sqlite.Options{})
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		// The address may hold a password, so the sentence does not quote it.
		return nil, fleet.Errorf(fleet.KindInvalid, "a database is named sqlite:FILE or postgres://user@host:port/database")
	}
	if _, secret := u.User.Password(); secret || u.Query().Has("password") {
		return nil, fleet.Errorf(fleet.KindInvalid, "a password does not belong on a command line: use PGPASSWORD or ~/.pgpass")
	}
	return postgres.Open(ctx, address, postgres.Options{Silent: true})
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
