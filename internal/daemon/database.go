package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
	"github.com/ironherd/ironherd/internal/server"
)

// Finding is one contradiction in the database.
type Finding struct {
	// Invariant that it breaks, by its number in docs/invariants.md, such as "I1".
	Invariant string `yaml:"invariant"`
	Subject   string `yaml:"subject"`
	Detail    string `yaml:"detail"`
}

// openEngine opens the configured database. It migrates SQLite at once, because no other process
// can use the file. Only `ironherd db migrate` migrates PostgreSQL, because other processes may use
// it.
func openEngine(ctx context.Context, c config.Config, o sqlite.Options) (bmdb.Engine, error) {
	if c.Database.URL != "" {
		return openPostgres(ctx, c, o.Logger)
	}
	// Whoever opens a file changes it, so that of another program is refused before.
	have, _, err := sqlite.SchemaOf(ctx, c.Database.Path)
	if fleet.KindOf(err) == fleet.KindInvalid {
		return nil, err
	}
	if why := missed(c, have, err); why != "" {
		return nil, fleet.Errorf(fleet.KindTemporary, "%s", why)
	}
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

// missed says what to do where a database is not there, or has nothing in it, although there was
// one (rule 11); "" where none is missed. have and err are what sqlite.SchemaOf has found.
//
// The identity beside a database tells of it, and so does an authority in dir: a start makes that
// after the database is on the disk, so a first start that was cut short leaves none without it.
// The SSH key does not count, because people bring their own to a first start. Neither does an
// authority where an empty file is: a person has made that, or a first start that was cut short.
func missed(c config.Config, have int64, err error) string {
	path := c.Database.Path
	telling, instead := []string{sqlite.IdentityOf(path)}, "put a backup there"
	switch {
	case fleet.KindOf(err) == fleet.KindNotFound:
		telling = append(telling, server.ForAgents.KeyFiles(c.Dir)[0], server.ForOperators.KeyFiles(c.Dir)[0])
	case err == nil && have == 0:
		instead = "move the empty file away and put a backup there"
	default:
		return ""
	}
	i := slices.IndexFunc(telling, func(file string) bool { _, err := os.Lstat(file); return err == nil })
	if i < 0 {
		return ""
	}
	file := path
	if real, err := secret.Follow(path); err == nil {
		file = real
	}
	return fmt.Sprintf("there is no database in %s, and %s tells that there was one: mount what it is on, name its file as database.path, or %s "+
		"with `ironherd db restore FILE`; to begin with an empty one, run `rm -f '%s' && mkdir -p '%s' && touch '%s'` as the control plane's user, and start again",
		path, telling[i], instead, telling[0], filepath.Dir(file), file)
}

func openPostgres(ctx context.Context, c config.Config, logger *slog.Logger) (bmdb.Engine, error) {
	if _, err := c.Database.ReadPassword(); err != nil { // what is wrong with it is told at once
		return nil, err
	}
	engine, err := postgres.Open(ctx, c.Database.URL, postgres.Options{
		Logger: logger, Password: c.Database.ReadPassword, Serializable: c.Database.Isolation == config.Serializable, Lease: c.Session.Lease,
		Connections: c.Database.Connections, Silent: !c.Database.Notify,
	})
	if err != nil {
		return nil, err
	}
	return engine, nil
}

// openExisting opens a database that must be there, and leaves its schema as it is, also that of
// SQLite: whoever only looks at it, perhaps before an upgrade, does not change it for good. It is
// KindNotFound when a SQLite file is not there or, unless mayBeEmpty, has no BMDB in it.
func openExisting(ctx context.Context, c config.Config, mayBeEmpty bool) (bmdb.Engine, error) {
	if c.Database.URL != "" {
		return openPostgres(ctx, c, nil)
	}
	have, _, err := sqlite.SchemaOf(ctx, c.Database.Path)
	if why := missed(c, have, err); why != "" {
		return nil, fleet.Errorf(fleet.KindNotFound, "%s", why)
	}
	if err == nil && have == 0 && !mayBeEmpty {
		err = noBMDB(c.Database.Path)
	}
	if fleet.KindOf(err) == fleet.KindNotFound {
		err = fmt.Errorf("%w: name the file that has it as database.path, or let `ironherd serve` make a new one", err)
	}
	if err != nil {
		return nil, err
	}
	engine, err := sqlite.Open(ctx, c.Database.Path, sqlite.Options{})
	if err != nil {
		return nil, err
	}
	return engine, nil
}

// openBMDB opens what openExisting finds, for whoever is no control plane.
func openBMDB(ctx context.Context, c config.Config) (*bmdb.DB, error) {
	engine, err := openExisting(ctx, c, false)
	if err != nil {
		return nil, err
	}
	return bmdb.Open(ctx, engine, bmdb.Options{Logger: slog.New(slog.DiscardHandler)})
}

func noBMDB(path string) error {
	return fleet.Errorf(fleet.KindNotFound, "there is no Bare Metal Database in %s", path)
}

// CheckDatabase looks for contradictions in a database. An embedded one must not be in use:
// KindInUse, naming the process, when it is. KindInvalid when its file is damaged. KindConflict,
// saying what to do, when its schema is older or newer than that of this binary; KindNotFound when
// there is none. Where not all of it could be checked, what was found is beside the error.
func CheckDatabase(ctx context.Context, c config.Config) ([]Finding, error) {
	engine, err := openExisting(ctx, c, false)
	if err != nil {
		return nil, err
	}
	if err := refuseDamaged(ctx, engine, c.Database.Path); err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	db, err := bmdb.Open(ctx, engine, bmdb.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	found, err := db.Check(ctx)
	if err = errors.Join(err, db.Close()); err != nil {
		err = fmt.Errorf("not all of the database was checked: %w", err)
	}
	findings := make([]Finding, len(found))
	for i, f := range found {
		findings[i] = Finding{Invariant: f.Invariant, Subject: f.Subject, Detail: f.Detail}
	}
	return findings, err
}

// refuseDamaged fails with KindInvalid where the file of an embedded database is damaged.
func refuseDamaged(ctx context.Context, engine bmdb.Engine, path string) error {
	e, embedded := engine.(*sqlite.Engine)
	if !embedded {
		return nil
	}
	what, err := e.Damage(ctx)
	if err != nil {
		return fmt.Errorf("look for damage in %s: %w", path, err)
	}
	if what == "" {
		return nil
	}
	return fleet.Errorf(fleet.KindInvalid, "the database %s is damaged: %s; move it away, keep it, and put a backup in its place with `ironherd db restore FILE`",
		path, strings.Join(strings.Fields(what), " "))
}

// Restored is what AcceptRestore finds.
type Restored struct {
	// Evidence is why the database looks restored or copied; "": it does not.
	Evidence string `yaml:"evidence"`
	// GoesOn is what waits for the acceptance.
	GoesOn []Withheld `yaml:"goesOn"`
	// Accepted: the database is the one to go on with.
	Accepted bool `yaml:"accepted"`
}

// Withheld is work that goes on once a database is accepted.
type Withheld struct {
	Machine string `yaml:"machine"`
	Process string `yaml:"process"`
	Reason  string `yaml:"reason"`
}

// AcceptRestore records that a database which looks restored or copied is the one to go on with;
// unless sure, only when nothing would go on by that. Its errors are those of CheckDatabase.
func AcceptRestore(ctx context.Context, c config.Config, actor string, sure bool) (r Restored, err error) {
	db, err := openBMDB(ctx, c)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	env, err := db.Environment(ctx)
	if err != nil || env.Restored == "" {
		return r, err
	}
	r.Evidence = env.Restored
	withheld, err := db.Withheld(ctx)
	if err != nil {
		return r, err
	}
	for _, w := range withheld {
		r.GoesOn = append(r.GoesOn, Withheld{Machine: w.Name, Process: string(w.Process), Reason: w.Reason})
	}
	if len(r.GoesOn) > 0 && !sure {
		return r, nil
	}
	if err := db.AcceptRestore(ctx, actor); err != nil {
		return r, err
	}
	r.Accepted = true
	return r, nil
}

// Authority is what AcceptAuthority made count.
type Authority struct {
	// File has it.
	File string `yaml:"file"`
	// Fingerprint is that of its certificate (SHA-256).
	Fingerprint string `yaml:"fingerprint"`
}

// AcceptAuthority records that agents are given the authority under the configuration's dir from
// now on, and makes one where there is none. KindConflict while a control plane runs; KindInvalid
// where the configuration names a certificate, or what agents are given, of which nothing is
// recorded. Otherwise its errors are those of CheckDatabase.
func AcceptAuthority(ctx context.Context, c config.Config, actor string) (a Authority, err error) {
	if c.AgentAPI.TLS.Certificate != "" {
		return a, fleet.Errorf(fleet.KindInvalid, "agent_api.tls names a certificate: no authority is made for agents, and none is recorded")
	}
	if c.Initializer.EndpointCA != "" {
		return a, fleet.Errorf(fleet.KindInvalid, "initializer.endpoint_ca says what agents are given (%s), so no authority is recorded: "+
			"take it out of the configuration for as long as this takes, if a listener has lost its own", c.Initializer.EndpointCA)
	}
	db, err := openBMDB(ctx, c)
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := secret.MakeDir(c.Dir); err != nil {
		return a, fmt.Errorf("dir: %w", err)
	}
	if c.Database.URL != "" { // before a file is made that a start would refuse
		if err := db.NoneRuns(ctx); err != nil {
			return a, err
		}
	}
	a.File = server.ForAgents.KeyFiles(c.Dir)[0]
	if a.Fingerprint, err = server.MakeAuthority(server.ForAgents, c.Dir); err != nil {
		return a, err
	}
	return a, db.AcceptAuthority(ctx, actor, a.Fingerprint)
}

// Migrate brings the schema of a database to the version of this binary, and returns the versions
// before and after. A SQLite file must be there; a PostgreSQL database may be empty.
func Migrate(ctx context.Context, c config.Config) (from, to int64, err error) {
	engine, err := openExisting(ctx, c, true)
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
