// Package skew_test holds the BMDB to rule 6 with hosts whose clocks are five minutes before or
// behind the database's: no lease ends early, none is held twice, and what a dead holder had is
// free in time.
//
// The server is the one whose clock is wrong here: a function of ours hides its clock_timestamp().
// To a host that is the same as being wrong itself, as long as it reads its own clock for nothing
// but how much time has passed; a second test holds the source to that.
package skew_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest/engines"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/fleet"
)

func TestMain(m *testing.M) { os.Exit(engines.Main(m)) }

// lease is so long that a busy host extends it in time: a process that stands still for the trust
// window rightly loses it.
const lease = 6 * time.Second

func TestHostsAndDatabaseDisagree(t *testing.T) {
	t.Parallel()
	for _, ahead := range []string{"5 minutes", "-5 minutes"} {
		t.Run(ahead, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			url := skewed(t, ahead)
			holder, heir := open(t, url), open(t, url)
			if off := offset(t, holder); off.Abs() < 4*time.Minute || (off > 0) == strings.HasPrefix(ahead, "-") {
				t.Fatalf("the database's clock is off by %s: the test tests nothing", off)
			}
			must(t, bmdbtest.Stock(ctx, holder, "p1", []fleet.MachineID{fleet.NewMachineID()}, nil))
			for tries := 1; !outlived(t, holder, heir); tries++ {
				if tries == 5 {
					t.Fatal("this host is too busy to keep any lease")
				}
			}
		})
	}
}

// outlived has a holder live, and die, while an heir waits; false: a busy host has lost its lease
// while it lived.
func outlived(t *testing.T, holder, heir *bmdb.DB) bool {
	t.Helper()
	ctx := t.Context()
	s, other := session(t, holder, "holder", lease), session(t, heir, "heir", time.Hour)
	work := hunt(t, holder, s, time.Minute)
	if work == nil {
		t.Fatal("a machine that nobody alive has is not free after a minute")
	}
	guarded, release := work.Guard(ctx)
	defer release()
	alive, stop := context.WithCancel(ctx)
	defer stop()
	ran := make(chan error, 1)
	go func() { ran <- s.Run(alive) }()
	if taken := hunt(t, heir, other, 2*lease); taken != nil {
		if s.Trusted() {
			t.Fatalf("epoch %d was taken from a holder that is alive", taken.Epoch)
		}
		must(t, taken.Cancel(ctx, "again"))
		return false
	}
	err := work.Note(ctx, bmdb.RecordHistory("alive", ""))
	stop() // the holder dies, with its last words a third of a lease old at most
	if err := errors.Join(err, <-ran); err != nil {
		if s.Trusted() {
			t.Fatal(err)
		}
		return false
	}
	taken := hunt(t, heir, other, lease+2*time.Second)
	if taken == nil {
		t.Fatalf("not free %s after its holder's death", lease+2*time.Second)
	}
	if s.Trusted() || !errors.Is(context.Cause(guarded), fleet.ErrLeaseLost) {
		t.Fatal("taken while its holder still trusts its lease")
	}
	if err := work.Finish(ctx); fleet.KindOf(err) != fleet.KindLeaseLost {
		t.Fatalf("the commit of the dead holder: %v", err)
	}
	must(t, taken.Finish(ctx))
	return true
}

// hunt claims, and ends what is overdue, until it has work or time is up: then it looks once more.
func hunt(t *testing.T, db *bmdb.DB, s *bmdb.Session, patience time.Duration) *bmdb.Work {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for late := false; ; {
		_, err := db.CollectSessions(t.Context())
		must(t, err)
		c, err := s.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 1})
		must(t, err)
		if len(c.Works) > 0 {
			return c.Works[0]
		}
		if late {
			return nil
		}
		select {
		case <-ticker.C:
		case <-deadline.C:
			late = true
		}
	}
}

// skewed makes a database whose clock is wrong, and returns its URL.
func skewed(t *testing.T, ahead string) string {
	t.Helper()
	d := engines.Postgres().New(t)
	e := d.Open(t)
	err := e.Update(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
		for _, query := range []string{
			"CREATE SCHEMA skewed",
			"CREATE FUNCTION skewed.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$ SELECT pg_catalog.clock_timestamp() + interval '" + ahead + "' $$",
		} {
			if _, err := tx.ExecContext(ctx, query); err != nil {
				return err
			}
		}
		return nil
	})
	must(t, err)
	must(t, e.Close())
	return d.URL() + "&search_path=public,skewed,pg_catalog"
}

func open(t *testing.T, url string) *bmdb.DB {
	t.Helper()
	e, err := postgres.Open(t.Context(), url, postgres.Options{Lease: 2 * time.Minute})
	must(t, err)
	db, err := bmdb.Open(t.Context(), e, bmdb.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	return db
}

func offset(t *testing.T, db *bmdb.DB) time.Duration {
	t.Helper()
	now, err := db.Now(t.Context())
	must(t, err)
	return time.Until(now)
}

func session(t *testing.T, db *bmdb.DB, component string, lasts time.Duration) *bmdb.Session {
	t.Helper()
	s, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: component, Host: "h", Lease: lasts})
	must(t, err)
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// elapsedOnly are the places that read the host's clock: to know how long something took or how far
// away an instant is, or to start a Clock, and for nothing else.
var elapsedOnly = map[string][]string{
	"../../../trust/clock.go": {"newClock", "fakeTime", "Elapsed"},
	"../../transaction.go":    {"transact"},
	"../../turn.go":           {"readTurnClock"},
}

// hostTime is SQL that reads a clock: that of the host, in an engine that is part of the process.
// Statements get the database's time from the transaction.
var hostTime = regexp.MustCompile(`(?i)\b(now|(clock|statement|transaction)_timestamp|julianday|unixepoch|strftime|datetime)\(|\b(current_(timestamp|time|date)|localtime(stamp)?)\b`)

// TestHostClockIsNotRead: a reading of the host's clock that is stored or compared would be wrong
// by as much as that clock is.
func TestHostClockIsNotRead(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"../..", "../../agenda", "../../batch", "../../postgres", "../../statement", "../../../lifecycle", "../../../trust"} {
		paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
		must(t, err)
		if len(paths) == 0 {
			t.Fatalf("no source in %s", dir)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			must(t, err)
			for _, d := range file.Decls {
				name := "a declaration"
				if f, ok := d.(*ast.FuncDecl); ok {
					name = f.Name.Name
				}
				if slices.Contains(elapsedOnly[filepath.ToSlash(path)], name) {
					continue
				}
				ast.Inspect(d, func(n ast.Node) bool {
					switch n := n.(type) {
					case *ast.SelectorExpr:
						if pkg, ok := n.X.(*ast.Ident); ok && pkg.Name == "time" && slices.Contains([]string{"Now", "Since", "Until"}, n.Sel.Name) {
							t.Errorf("%s: %s reads the host's clock by time.%s", path, name, n.Sel.Name)
						}
					case *ast.BasicLit: // a server has a clock of its own
						if n.Kind == token.STRING && !strings.Contains(path, "postgres") && hostTime.MatchString(n.Value) {
							t.Errorf("%s: %s has SQL that reads a clock: %s", path, name, n.Value)
						}
					}
					return true
				})
			}
		}
	}
}
