package config

import (
	"fmt"
	"net/url"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
)

// Database is the Bare Metal Database: an embedded SQLite file, or PostgreSQL. "database:
// postgres://…" and "database: sqlite:…" are short for a section with the address alone.
type Database struct {
	// Path of the SQLite file, where there is no url. Default: ironherd.db in dir.
	Path string `yaml:"path"`
	// URL of a PostgreSQL database, postgres://user@host:port/database, with libpq's parameters. The
	// PG variables of the environment say what it leaves out. It must hold neither a password nor
	// sslpassword, for which there is PGSSLPASSWORD. Default: none, which means SQLite.
	URL string `yaml:"url"`
	// PasswordFile holds the password and nothing else. Default: none; then PGPASSWORD, PGPASSFILE and
	// ~/.pgpass count, as for every program that uses PostgreSQL.
	PasswordFile string `yaml:"password_file"`
	// Isolation is read-committed, or serializable for servers that have nothing else. Only for
	// PostgreSQL.
	Isolation string `yaml:"isolation"`
	// Connections is how many connections transactions use at most. Sessions and notifications use
	// three more. Only for PostgreSQL.
	Connections int `yaml:"connections"`
	// Notify wakes the other processes by NOTIFY when something becomes due. Without it they find it
	// by their next poll. Only for PostgreSQL.
	Notify bool `yaml:"notify"`
}

// The isolation levels.
const (
	ReadCommitted = "read-committed"
	Serializable  = "serializable"
)

// String names the database for people, without the parameters of a URL.
func (d Database) String() string {
	if d.URL == "" {
		return d.Path
	}
	if u, err := url.Parse(d.URL); err == nil {
		u.RawQuery = ""
		return u.Redacted()
	}
	return "the PostgreSQL database"
}

// Caveat says what may go wrong with the database's address, in one sentence; "": nothing that is
// known.
func (d Database) Caveat() string {
	host := ""
	if d.URL != "" {
		host = postgres.Unverified(d.URL)
	}
	if host == "" {
		return ""
	}
	return fmt.Sprintf("database.url does not have the server verified, so whoever answers as %s may ask for the password, and tells this control plane what is in the database: "+
		"add sslmode=verify-full to it, and sslrootcert=FILE with the authority of the server's certificate", host)
}

// maximumPassword is more than PostgreSQL takes, in bytes.
const maximumPassword = 4 << 10

// ReadPassword returns the content of the password file, which others must not be able to read; ""
// when there is none. An error is of kind Invalid.
func (d Database) ReadPassword() (string, error) {
	if d.PasswordFile == "" {
		return "", nil
	}
	content, err := secret.Read(d.PasswordFile, maximumPassword)
	if err != nil {
		return "", fleet.Errorf(fleet.KindInvalid, "database.password_file: %w", err)
	}
	password := strings.TrimRight(string(content), "\r\n")
	if password == "" {
		return "", fleet.Errorf(fleet.KindInvalid, "database.password_file: %s is empty", d.PasswordFile)
	}
	return password, nil
}

const (
	schemePostgres   = "postgres://"
	schemePostgreSQL = "postgresql://"
	schemeSQLite     = "sqlite:"
)

// expandDatabase turns the short form of the section into the long one.
func expandDatabase(root *yaml.Node) {
	for i := 0; i+1 < len(root.Content); i += 2 {
		value := root.Content[i+1]
		if root.Content[i].Value != "database" || value.Kind != yaml.ScalarNode {
			continue
		}
		key, content := "", value.Value
		switch {
		case strings.HasPrefix(content, schemePostgres), strings.HasPrefix(content, schemePostgreSQL):
			key = "url"
		case strings.HasPrefix(content, schemeSQLite):
			key, content = "path", strings.TrimPrefix(content, schemeSQLite)
		default:
			continue // decoding reports that a section is expected
		}
		root.Content[i+1] = &yaml.Node{Kind: yaml.MappingNode, Line: value.Line, Content: []*yaml.Node{
			{Kind: yaml.ScalarNode, Tag: "!!str", Value: key, Line: value.Line},
			{Kind: yaml.ScalarNode, Tag: "!!str", Value: content, Line: value.Line},
		}}
	}
}

func (d *document) checkDatabase(c Database) {
	if c.Isolation != ReadCommitted && c.Isolation != Serializable {
		d.keyFault("database.isolation", "must be %s or %s, not %q", ReadCommitted, Serializable, c.Isolation)
	}
	if c.Connections < 2 {
		d.keyFault("database.connections", "must be at least 2, not %d", c.Connections)
	}
	if c.URL == "" {
		if c.PasswordFile != "" {
			d.keyFault("database.password_file", "is for PostgreSQL, and there is no database.url")
		}
		return
	}
	if d.isSet("database.path") {
		d.keyFault("database.path", "is for SQLite, and database.url names a PostgreSQL database: keep one of them")
	}
	if _, err := c.ReadPassword(); err != nil {
		d.faultsOf("", err)
	}
	u, err := url.Parse(c.URL)
	if err != nil || !strings.HasPrefix(c.URL, schemePostgres) && !strings.HasPrefix(c.URL, schemePostgreSQL) {
		// It may hold a password, so the sentence does not quote it.
		d.keyFault("database.url", "is not a URL such as postgres://ironherd@db.example:5432/ironherd")
		return
	}
	if _, secret := u.User.Password(); secret || u.Query().Has("password") {
		d.keyFault("database.url", "must not hold a password: put it into a file and name that as database.password_file, or use PGPASSWORD or ~/.pgpass")
	}
	if u.Query().Has("sslpassword") {
		d.keyFault("database.url", "must not hold the password of a key (sslpassword): use PGSSLPASSWORD")
	}
	if err := postgres.CheckAddress(c.URL, c.PasswordFile != ""); err != nil {
		d.fileFault("database.url", err)
	}
}
