package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest/engines"
	"github.com/ironherd/ironherd/internal/bmdb/transfer"
	"github.com/ironherd/ironherd/internal/fleet"
)

func TestMain(m *testing.M) { os.Exit(engines.Main(m)) }

const machines = 550 // more than two batches

// TestCopy goes all ways, and back again.
func TestCopy(t *testing.T) {
	t.Parallel()
	for _, from := range []engines.Opener{engines.SQLite(), engines.Postgres()} {
		for _, to := range []engines.Opener{engines.SQLite(), engines.Postgres()} {
			t.Run(from.Name+" to "+to.Name, func(t *testing.T) {
				t.Parallel()
				ctx := t.Context()
				source, target := from.New(t), to.New(t)
				a := lived(t, source)
				before := seen(t, source)
				batches := 0
				r, err := transfer.Copy(ctx, source.Open(t), target.Open(t), transfer.Options{
					From: "the old one", To: "the new one", Progress: func(_ string, rows, of int64) {
						if batches++; rows > of {
							t.Errorf("%d rows of %d", rows, of)
						}
						// Somebody may kill us now. Nobody else can open the embedded one.
						if batches == 1 && from.Name == "postgres" && restored(t, source) == "" {
							t.Error("the source is not marked while it is copied")
						}
					},
				})
				if err != nil {
					t.Fatal(err)
				}
				if batches < 10 || len(r.Tables) < 20 || rows(r, "machine") != machines || rows(r, "history") < machines || rows(r, "installed") != 1 {
					t.Fatalf("%d batches, %+v", batches, r)
				}
				if after := seen(t, target); !reflect.DeepEqual(before, after) {
					t.Fatalf("the copy is not what was copied:\n%+v\n%+v", before, after)
				}
				if to.Name == "postgres" {
					partitioned(t, target)
				}
				waits(t, source, a, "copied to the new one")
				waits(t, target, a, "copied from the old one")
				goesOn(t, target, a)
			})
		}
	}
}

func rows(r transfer.Report, name string) int64 {
	for _, t := range r.Tables {
		if t.Name == name {
			return t.Rows
		}
	}
	return -1
}

func open(t *testing.T, d engines.Database) *bmdb.DB {
	t.Helper()
	db, err := bmdb.Open(t.Context(), d.Open(t), bmdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// lived fills a database with machines at every point of their way; the agent that is returned
// waits for an install.
func lived(t *testing.T, d engines.Database) bmdb.AgentIdentity {
	t.Helper()
	ctx, db := t.Context(), open(t, d)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ids := make([]fleet.MachineID, machines)
	for i := range ids {
		ids[i] = fleet.NewMachineID()
	}
	must(bmdbtest.Stock(ctx, db, "p1", ids, &fleet.InstallRequest{Image: fleet.Image{URL: "http://x/y"}, FirstBootData: []byte("ü\x00")}))
	must(db.ListenerAlive(ctx, 0, 30*time.Second)) // it was up, and is no more
	s, err := db.StartSession(ctx, bmdb.SessionOptions{Component: "initializer", Lease: time.Minute})
	must(err)
	c, err := s.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 5})
	must(err)
	var agents []bmdb.AgentIdentity
	for _, w := range c.Works[:3] {
		a := bmdb.AgentIdentity{Machine: w.Subject.Machine, PublicKey: []byte{0, 255}}
		must(w.Note(ctx, bmdb.MintTakeover(0, &a.TakeoverGeneration), bmdb.PinHostKeys(a.Machine, []string{"ssh-ed25519 A"})))
		must(w.Finish(ctx, bmdb.SetAgentStarted(fleet.AgentStarted{TakeoverGeneration: a.TakeoverGeneration, PublicKey: a.PublicKey})))
		must(db.RecordSpoken(ctx, a, "b1"))
		must(db.RecordHardware(ctx, a, []byte("report"), nil))
		agents = append(agents, a)
	}
	// the fifth is held
	must(c.Works[3].Fail(ctx, bmdb.Failure{Cause: "refused", Backoff: fleet.Backoff{Initial: time.Hour}}))
	o, err := db.HandOutInstall(ctx, agents[0], 0, 0)
	must(err)
	must(db.RecordInstallReport(ctx, agents[0], fleet.InstallReport{Generation: 1, Attempt: o.Attempt, OK: true}))
	must(errorOf(db.RecordInstalled(ctx, agents[0].Machine, 1, o.Attempt, o.Secret, "b2")))
	o, err = db.HandOutInstall(ctx, agents[1], 0, 0)
	must(err)
	must(db.RecordInstallReport(ctx, agents[1], fleet.InstallReport{Generation: 1, Attempt: o.Attempt, Error: "no disk"}))
	must(bmdbtest.Quarantine(ctx, db, "op", ids[100], "smells"))
	// An install without first-boot data, as most are.
	_, err = db.RequestInstall(ctx, "op", ids[100], fleet.InstallRequest{Image: fleet.Image{URL: "http://x/z"}}, false)
	must(err)
	must(s.Close(ctx, "done"))
	must(db.Close())
	return agents[2]
}

// seen is what people can see of a database.
func seen(t *testing.T, d engines.Database) any {
	t.Helper()
	ctx, db := t.Context(), open(t, d)
	defer db.Close()
	list, err := db.ListMachines(ctx, bmdb.MachineFilter{Limit: 2 * machines})
	if err != nil {
		t.Fatal(err)
	}
	all := []any{list}
	for i, m := range list {
		if i >= 20 && i != 100 {
			continue
		}
		r, err := db.Machine(ctx, m.ID)
		if err != nil {
			t.Fatal(err)
		}
		if i := r.InstallRequest; i != nil && len(i.FirstBootData) == 0 {
			i.FirstBootData = nil // drivers read no bytes as nil, or as none
		}
		h, err := db.History(ctx, m.ID, 100)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r, h)
	}
	s, err := db.Summary(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if findings, err := db.Check(ctx); err != nil || len(findings) > 0 {
		t.Fatalf("findings %v, %v", findings, err)
	}
	return append(all, fmt.Sprintf("%+v", s.States), s.Machines)
}

// partitioned says that each day to come has its partition of history, and that the rows of today
// went to theirs.
func partitioned(t *testing.T, d engines.Database) {
	t.Helper()
	e := d.Open(t)
	defer e.Close()
	var partitions, rest int
	err := e.View(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
		return tx.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM pg_inherits WHERE inhparent = CAST('history' AS REGCLASS)),
			(SELECT count(*) FROM history_default)`).Scan(&partitions, &rest)
	})
	if err != nil || partitions != 8 || rest != 0 {
		t.Fatalf("%d partitions, want seven days and the default one, which has %d rows, %v", partitions, rest, err)
	}
}

// waits says that nothing is destroyed on the word of a database that is one of two.
func waits(t *testing.T, d engines.Database, a bmdb.AgentIdentity, evidence string) {
	t.Helper()
	db := open(t, d)
	defer db.Close()
	env, err := db.Environment(t.Context())
	if err != nil || !strings.Contains(env.Restored, evidence) {
		t.Fatalf("evidence %q, %v, want %q", env.Restored, err, evidence)
	}
	if o, err := db.HandOutInstall(t.Context(), a, 0, 0); err != nil || o != nil {
		t.Fatalf("handed out %+v, %v", o, err)
	}
}

// goesOn accepts the copy and works on.
func goesOn(t *testing.T, d engines.Database, a bmdb.AgentIdentity) {
	t.Helper()
	ctx, db := t.Context(), open(t, d)
	defer db.Close()
	before, err := db.History(ctx, a.Machine, 1)
	if err == nil {
		err = db.AcceptRestore(ctx, "op")
	}
	if err != nil {
		t.Fatal(err)
	}
	if o, err := db.HandOutInstall(ctx, a, 0, 0); err != nil || o == nil {
		t.Fatalf("handed out %+v, %v after accepting", o, err)
	}
	after, err := db.History(ctx, a.Machine, 1)
	if err != nil || reflect.DeepEqual(before, after) {
		t.Fatalf("new history is not the newest: %+v, %v", after, err)
	}
	s, err := db.StartSession(ctx, bmdb.SessionOptions{Component: "initializer", Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 100})
	if err != nil || len(c.Works) != 100 {
		t.Fatalf("claimed %d, %v", len(c.Works), err)
	}
	for _, w := range c.Works {
		if err := w.Finish(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if findings, err := db.Check(ctx); err != nil || len(findings) > 0 {
		t.Fatalf("findings %v, %v", findings, err)
	}
}

// TestCopyRefuses and leaves everything as it is.
func TestCopyRefuses(t *testing.T) {
	t.Parallel()
	for _, e := range []engines.Opener{engines.SQLite(), engines.Postgres()} {
		t.Run(e.Name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			source, full, empty := e.New(t), e.New(t), e.New(t)
			lived(t, source)
			lived(t, full)
			if _, err := transfer.Copy(ctx, source.Open(t), full.Open(t), transfer.Options{}); fleet.KindOf(err) != fleet.KindConflict {
				t.Fatalf("into a full one: %v", err)
			}
			stopped, cancel := context.WithCancel(ctx)
			_, err := transfer.Copy(stopped, source.Open(t), empty.Open(t), transfer.Options{Progress: func(name string, _, _ int64) {
				if name == "history" {
					cancel()
				}
			}})
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("interrupted: %v", err)
			}
			if evidence := restored(t, source); evidence != "" {
				t.Fatalf("the source of a copy that failed is marked: %s", evidence)
			}
			_, err = transfer.Copy(ctx, source.Open(t), replyLost{empty.Open(t)}, transfer.Options{})
			if !errors.Is(err, errReplyLost) || restored(t, source) == "" || restored(t, empty) == "" {
				t.Fatalf("with a commit that nobody heard of: %v, %q, %q", err, restored(t, source), restored(t, empty))
			}
			if _, err := transfer.Copy(ctx, source.Open(t), e.New(t).Open(t), transfer.Options{}); err != nil {
				t.Fatalf("once more, to another one: %v", err)
			}
		})
	}
}

var errReplyLost = errors.New("the connection is gone")

// replyLost is a database whose commits succeed, and nobody hears of that.
type replyLost struct{ bmdb.Engine }

func (e replyLost) Update(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return errors.Join(e.Engine.Update(ctx, fn), errReplyLost)
}

func restored(t *testing.T, d engines.Database) string {
	t.Helper()
	db := open(t, d)
	defer db.Close()
	env, err := db.Environment(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return env.Restored
}

// TestCopyOfADatabaseInUse: of one for many processes, whoever lives must be stopped.
func TestCopyOfADatabaseInUse(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	source, target := engines.Postgres().New(t), engines.SQLite().New(t)
	db := open(t, source)
	defer db.Close()
	s, err := db.StartSession(ctx, bmdb.SessionOptions{Component: "updater", Host: "ctl1", PID: 7, Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	_, err = transfer.Copy(ctx, source.Open(t), target.Open(t), transfer.Options{})
	if fleet.KindOf(err) != fleet.KindInUse || !strings.Contains(err.Error(), "updater on ctl1 (pid 7)") {
		t.Fatalf("%v", err)
	}
	if err := errors.Join(s.Close(ctx, "done"), db.ListenerAlive(ctx, time.Minute, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	_, err = transfer.Copy(ctx, source.Open(t), target.Open(t), transfer.Options{})
	if fleet.KindOf(err) != fleet.KindInUse || !strings.Contains(err.Error(), "by an agent API: stop every control plane that has the role agent-api") {
		t.Fatalf("beside an agent API: %v", err)
	}
	if evidence := restored(t, source); evidence != "" {
		t.Fatalf("a source that was refused is marked: %s", evidence)
	}
	lapse(t, source)
	if _, err := transfer.Copy(ctx, source.Open(t), target.Open(t), transfer.Options{}); err != nil {
		t.Fatal(err)
	}
}

// TestCopyBesideAControlPlaneThatIsStarted: what it did is in the source alone, so the copy does
// not count, whether it still runs or not.
func TestCopyBesideAControlPlaneThatIsStarted(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for what, work := range map[string]func(db *bmdb.DB) error{
		"it runs": func(db *bmdb.DB) error {
			return errorOfStart(db.StartSession(ctx, bmdb.SessionOptions{Component: "updater", Lease: time.Minute}))
		},
		"it has run": func(db *bmdb.DB) error {
			s, err := db.StartSession(ctx, bmdb.SessionOptions{Component: "updater", Lease: time.Minute})
			if err != nil {
				return err
			}
			return s.Close(ctx, "done")
		},
		"an agent API": func(db *bmdb.DB) error { return db.ListenerAlive(ctx, time.Minute, 30*time.Second) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			source, target := engines.Postgres().New(t), engines.SQLite().New(t)
			lived(t, source)
			started := false
			_, err := transfer.Copy(ctx, source.Open(t), target.Open(t), transfer.Options{Progress: func(string, int64, int64) {
				if started {
					return
				}
				started = true
				db := open(t, source)
				if err := errors.Join(work(db), db.Close()); err != nil {
					t.Error(err)
				}
			}})
			if fleet.KindOf(err) != fleet.KindInUse || !strings.Contains(err.Error(), "was started on the source") {
				t.Errorf("%s: %v", fleet.KindOf(err), err)
			}
			if source, target := restored(t, source), restored(t, target); source != "" || target != "" {
				t.Errorf("the source is marked %q, and the target %q", source, target)
			}
		})
	}
}

func errorOfStart(_ *bmdb.Session, err error) error { return err }

// lapse has the time go by in which the agent API that was stopped still counts as up.
func lapse(t *testing.T, d engines.Database) {
	t.Helper()
	e := d.Open(t)
	defer e.Close()
	err := e.Update(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE listener SET valid_until = $1", tx.Now().UnixMicro()-1)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestCopyOfAnEmbeddedDatabase does not wait for the agent API that had it open last.
func TestCopyOfAnEmbeddedDatabase(t *testing.T) {
	t.Parallel()
	source, target := engines.SQLite().New(t), engines.SQLite().New(t)
	db := open(t, source)
	if err := errors.Join(db.ListenerAlive(t.Context(), time.Minute, 30*time.Second), db.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := transfer.Copy(t.Context(), source.Open(t), target.Open(t), transfer.Options{}); err != nil {
		t.Fatal(err)
	}
}

// errorOf leaves out when the system is to call again.
func errorOf(_ time.Duration, err error) error { return err }
