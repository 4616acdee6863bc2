package postgres

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
)

// CheckAddress returns what is wrong with an address for Open, or with a file that it names, or
// that the PG* variables name, or that is in the home directory, in its place. The error is of
// KindInvalid. With a password of its own, Open takes none from a file of passwords, so that is not
// looked at.
func CheckAddress(url string, ownPassword bool) error {
	_, err := parse(url, ownPassword)
	return err
}

// Unverified returns the first host of an address, other than this one, which may be anybody who
// answers there: its certificate is not verified, or it need have none. "" where there is no such
// host, or the address cannot be understood.
func Unverified(url string) string {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return ""
	}
	for _, way := range ways(config) {
		network, _ := pgconn.NetworkAddress(way.Host, way.Port)
		verified := way.TLSConfig != nil && (!way.TLSConfig.InsecureSkipVerify || way.TLSConfig.VerifyPeerCertificate != nil)
		if network != "unix" && !secret.StaysHere(way.Host) && !verified {
			return way.Host
		}
	}
	return ""
}

// ways are all by which a connection is tried, one after the other.
func ways(c *pgx.ConnConfig) []*pgconn.FallbackConfig {
	return append([]*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port, TLSConfig: c.TLSConfig}}, c.Fallbacks...)
}

// parse understands an address, with what the files hold now that it names. The error, of
// KindInvalid, does not tell the address, which may contain a password.
func parse(url string, ownPassword bool) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if file, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, fleet.Errorf(fleet.KindInvalid, "of the database's address, %w", secret.Unreadable(file.Path, file))
	}
	if err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "the database's address cannot be understood: %w%s", withoutAddress(err), naming(url))
	}
	c := config.ConnConfig
	var secrets []string
	for _, way := range ways(c) {
		if way.TLSConfig != nil && len(way.TLSConfig.Certificates) > 0 {
			secrets = append(secrets, fileOf(url, "sslkey"))
			break
		}
	}
	if !ownPassword && c.Password != "" && !hasPassword(url) {
		secrets = append(secrets, fileOf(url, "passfile"))
	}
	for _, path := range secrets {
		if path == "" { // a service names it
			continue
		}
		if err := secret.Check(path); err != nil {
			return nil, fleet.Errorf(fleet.KindInvalid, "of the database's address, %w", err)
		}
	}
	return config, nil
}

// hasPassword reports whether a password comes with the address or from the environment, and so
// from no file.
func hasPassword(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return variable("PGPASSWORD") != ""
	}
	_, written := u.User.Password()
	return written || u.Query().Has("password") || variable("PGPASSWORD") != ""
}

// variable returns a variable of this process's environment, which the driver has read itself: no
// other one tells which files it uses.
func variable(name string) (value string) {
	for _, entry := range os.Environ() {
		if is, found := strings.CutPrefix(entry, name+"="); found {
			value = is
		}
	}
	return value
}

// filesOf are the parameters of an address that name files, with the variables that do where it
// does not, and with what there may be in the home directory otherwise.
var filesOf = []struct{ parameter, variable, home string }{
	{"sslrootcert", "PGSSLROOTCERT", ".postgresql/root.crt"},
	{"sslcert", "PGSSLCERT", ".postgresql/postgresql.crt"},
	{"sslkey", "PGSSLKEY", ".postgresql/postgresql.key"},
	{"passfile", "PGPASSFILE", ".pgpass"},
}

// Files returns the files that are there, or ought to be, of those that CheckAddress reads.
func Files(address string) (paths []string) {
	for _, f := range filesOf {
		path := fileOf(address, f.parameter)
		if path == "" || path == "system" && f.parameter == "sslrootcert" {
			continue
		}
		if home, err := os.UserHomeDir(); err == nil && path == filepath.Join(home, f.home) {
			if _, err := os.Lstat(path); err != nil {
				continue
			}
		}
		paths = append(paths, path)
	}
	return paths
}

// fileOf returns the file that a parameter names, or that takes its place; "" where that cannot be
// told: of a service, and of an address that is no URL.
func fileOf(address, parameter string) string {
	u, err := url.Parse(address)
	if err != nil || address != "" && !strings.HasPrefix(u.Scheme, "postgres") {
		return ""
	}
	if path, given := parameterOf(u, parameter); given {
		return path
	}
	if _, service := parameterOf(u, "service"); service || variable("PGSERVICE") != "" {
		return ""
	}
	for _, f := range filesOf {
		if f.parameter != parameter {
			continue
		}
		home, err := os.UserHomeDir()
		if err == nil {
			home = filepath.Join(home, f.home)
		}
		return cmp.Or(variable(f.variable), home)
	}
	return ""
}

// parameterOf returns the last value of a parameter as the driver reads it: only "&" ends one, and
// a plus sign is one.
func parameterOf(u *url.URL, parameter string) (value string, given bool) {
	for pair := range strings.SplitSeq(u.RawQuery, "&") {
		name, text, _ := strings.Cut(pair, "=")
		if name == parameter {
			value, given = text, true
		}
	}
	if plain, err := url.PathUnescape(value); err == nil {
		value = plain
	}
	return value, given
}

// naming names the files of an address behind what is wrong with one of them, which the driver does
// not say.
func naming(address string) string {
	if files := Files(address); len(files) > 0 {
		return " (its files are " + strings.Join(files, ", ") + ")"
	}
	return ""
}

// refresh gives a connection that is about to be made what the files hold now: the password, and
// by which certificates we and the server know each other. They change while a control plane runs.
// That one cannot be read is no answer of the database, and says nothing of later connections.
func (e *Engine) refresh(_ context.Context, c *pgx.ConnConfig) error {
	password, err := e.password()
	if err != nil {
		return bmdb.Unavailable("the database's password cannot be read: %w", err)
	}
	config, err := parse(e.url, password != "")
	if err != nil {
		return bmdb.Unavailable("no connection to the database can be made: %w", err)
	}
	now := config.ConnConfig
	c.Host, c.Port, c.TLSConfig, c.Fallbacks = now.Host, now.Port, now.TLSConfig, now.Fallbacks
	c.Password = cmp.Or(password, now.Password)
	return nil
}

// password returns the password that does not come with the address; "": there is none.
func (e *Engine) password() (string, error) {
	if e.options.Password == nil {
		return "", nil
	}
	return e.options.Password()
}
