package sqlite

import (
	"database/sql"
	"errors"
	"io/fs"
	"net/url"

	"github.com/ironherd/ironherd/internal/secret"
)

// parts are what follows the name of a database in those of SQLite's files, its own first.
var parts = []string{"", "-wal", "-shm", "-journal"}

// locate returns where the database at path is, without links. Where root, or the user of this
// process, has made a link of it, that is followed. What somebody else has put there is refused, be
// it the database or what belongs to it: see package secret.
func locate(path string) (string, error) {
	file, err := secret.Follow(path)
	if err != nil {
		return "", err
	}
	for _, suffix := range parts {
		// Not opened: to close it would end the locks that SQLite has on it in this process.
		if err := secret.Owned(file + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return file, nil
}

// openFile opens a database file. Each connection runs the pragmas, after one that lets it wait for
// locks.
func openFile(path, mode string, pragmas ...string) (*sql.DB, error) {
	query := url.Values{"mode": {mode}, "_pragma": append([]string{"busy_timeout(10000)"}, pragmas...)}
	name := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: query.Encode()}
	return sql.Open("sqlite", name.String())
}
