package bmdb_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
)

// gated is an engine that holds one commit back.
type gated struct {
	bmdb.Engine
	armed atomic.Bool
	gate  chan struct{}
}

func (g *gated) Update(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	if g.armed.CompareAndSwap(true, false) {
		<-g.gate
	}
	return g.Engine.Update(ctx, fn)
}

// enders are a session with work, one end of which is held back while others come.
type enders struct {
	*testing.T
	engine  *gated
	db      *bmdb.DB
	session *bmdb.Session
	works   []*bmdb.Work
}

func newEnders(t *testing.T) *enders {
	t.Helper()
	return observed(t, nil)
}

func observed(t *testing.T, observer bmdb.Observer) *enders {
	t.Helper()
	return endersOf(t, 5, observer)
}

// endersOf are enders with so many works.
func endersOf(t *testing.T, works int, observer bmdb.Observer) *enders {
	t.Helper()
	c := &enders{T: t, engine: &gated{Engine: open(t, filepath.Join(t.TempDir(), "bmdb")), gate: make(chan struct{})}}
	db, err := bmdb.Open(t.Context(), c.engine, bmdb.Options{Observer: observer})
	if err != nil {
		t.Fatal(err)
	}
	c.db = db
	ids := make([]fleet.MachineID, works)
	for i := range ids {
		ids[i] = fleet.NewMachineID()
	}
	if err := bmdbtest.Stock(t.Context(), db, "p", ids, nil); err != nil {
		t.Fatal(err)
	}
	c.session = c.start("enders")
	c.works = c.claim(c.session, len(ids))
	return c
}

func (c *enders) start(component string) *bmdb.Session {
	c.Helper()
	s, err := c.db.StartSession(c.Context(), bmdb.SessionOptions{Component: component, Lease: 10 * time.Second})
	if err != nil {
		c.Fatal(err)
	}
	return s
}

func (c *enders) claim(s *bmdb.Session, n int) []*bmdb.Work {
	c.Helper()
	claim, err := s.Claim(c.Context(), bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: max(n, 1)})
	if err != nil || len(claim.Works) != n {
		c.Fatalf("claimed %d, %v", len(claim.Works), err)
	}
	return claim.Works
}

// finish holds the end of the first work back until the others wait, and whatever comes meanwhile
// has happened; then all go on. It returns what became of each.
func (c *enders) finish(works []*bmdb.Work, meanwhile func()) []error {
	c.Helper()
	return c.end(works, meanwhile, func(w *bmdb.Work) error { return w.Finish(c.Context()) })
}

// end is finish for any way to end.
func (c *enders) end(works []*bmdb.Work, meanwhile func(), end func(w *bmdb.Work) error) []error {
	c.Helper()
	errs := make([]error, len(works))
	done := make(chan struct{}, len(works))
	c.engine.armed.Store(true)
	for i, w := range works {
		go func() {
			errs[i] = end(w)
			done <- struct{}{}
		}()
		synctest.Wait() // it is held back, or waits for who is
	}
	meanwhile()
	close(c.engine.gate)
	for range works {
		<-done
	}
	return errs
}

func lost(err error) bool { return fleet.KindOf(err) == fleet.KindLeaseLost }

// TestEndsTogetherNameTheirEpochs: among ends that are committed together is one of an epoch that
// has gone, by the session that holds the machine's lane again.
func TestEndsTogetherNameTheirEpochs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newEnders(t)
		defer closed(t, c.db)
		old := c.works[4]
		if err := old.Cancel(t.Context(), "again"); err != nil {
			t.Fatal(err)
		}
		again := c.claim(c.session, 1)[0]
		if again.Subject != old.Subject {
			t.Fatalf("claimed %s, not %s", again.Subject, old.Subject)
		}
		errs := c.finish([]*bmdb.Work{c.works[0], c.works[1], old, c.works[2]}, func() {})
		if errs[0] != nil || errs[1] != nil || !lost(errs[2]) || errs[3] != nil {
			t.Fatalf("%v", errs)
		}
		if err := again.Note(t.Context(), bmdb.RecordHistory("mine", "")); err != nil {
			t.Fatalf("the lease that was taken again: %v", err)
		}
	})
}

// TestEndsTogetherAreBounded is rule 12: however many ends wait, one transaction has 200 of them.
func TestEndsTogetherAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := endersOf(t, 300, nil)
		defer closed(t, c.db)
		bounds := &bmdbtest.Bounds{Engine: c.engine.Engine}
		c.engine.Engine = bounds
		if errs := c.finish(c.works, func() {}); errors.Join(errs...) != nil {
			t.Fatal(errs)
		}
		if most := bounds.Most("LockMachines"); most < 2 || most > 200 {
			t.Errorf("one transaction ended %d works", most)
		}
	})
}

// TestEndsTogetherEndAWorkOnce: of two ends of one work that wait to be committed together, the
// first counts (I4).
func TestEndsTogetherEndAWorkOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newEnders(t)
		defer closed(t, c.db)
		twice := c.works[1]
		var begun atomic.Int64
		errs := c.end([]*bmdb.Work{c.works[0], twice, twice}, func() {}, func(w *bmdb.Work) error {
			if begun.Add(1) == 3 {
				return w.Fail(t.Context(), bmdb.Failure{Cause: "x", Backoff: fleet.Backoff{Initial: time.Second}})
			}
			return w.Finish(t.Context())
		})
		if errs[0] != nil || errs[1] != nil || !lost(errs[2]) {
			t.Errorf("%v", errs)
		}
		rows, err := c.db.History(t.Context(), twice.Subject.Machine, 10)
		if err != nil {
			t.Fatal(err)
		}
		rows = slices.DeleteFunc(rows, func(r bmdb.HistoryRow) bool { return r.Actor != "enders@" })
		if len(rows) != 1 || rows[0].Event != fleet.EventFinished {
			t.Errorf("history %+v", rows)
		}
	})
}

// TestEndsTogetherNeedTheirSession: it ends while they wait, and only one of its lanes has been
// taken over.
func TestEndsTogetherNeedTheirSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newEnders(t)
		defer closed(t, c.db)
		errs := c.finish(c.works, func() {
			time.Sleep(11 * time.Second)
			c.claim(c.start("heir"), 1)
		})
		for i, err := range errs {
			if !lost(err) {
				t.Errorf("the end of work %d: %v", i, err)
			}
		}
	})
}

// TestEndsTogetherSeeWhatOthersWrote: somebody writes a fact about a machine while its work waits
// to be ended with others.
func TestEndsTogetherSeeWhatOthersWrote(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newEnders(t)
		defer closed(t, c.db)
		written := c.works[2].Subject.Machine
		errs := c.finish(c.works, func() {
			claim, err := c.start("updater").Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessUpdate, Limit: 1})
			if err != nil || len(claim.Works) != 1 {
				t.Fatalf("claimed %d updates, %v", len(claim.Works), err)
			}
			if err := claim.Works[0].Finish(t.Context(), bmdb.SetProvided(written, "", fleet.Provided{Status: fleet.ProviderStatusFailed})); err != nil {
				t.Fatal(err)
			}
		})
		for i, err := range errs {
			if err != nil {
				t.Errorf("the end of work %d: %v", i, err)
			}
		}
		machines, err := c.db.ListMachines(t.Context(), bmdb.MachineFilter{Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range machines {
			if (m.State == fleet.StateProvided) == (m.ID == written) {
				t.Errorf("machine %s is %s: %s", m.ID, m.State, m.Reason)
			}
		}
	})
}

// TestEndsTogetherSeeWhatWasPutOff: the janitor has moved the row of a machine in the agenda to the
// deadline of its holder, which then wants it back to just where it was when it claimed.
func TestEndsTogetherSeeWhatWasPutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newEnders(t)
		defer closed(t, c.db)
		time.Sleep(6 * time.Second)
		if err := c.session.Extend(t.Context()); err != nil {
			t.Fatal(err)
		}
		policy := fleet.DefaultPolicy()
		policy.SilentAfter += time.Minute
		if _, err := c.db.SetPolicy(t.Context(), policy); err != nil {
			t.Fatal(err)
		}
		if n, err := c.db.RecomputeAgenda(t.Context(), 100); err != nil || n < len(c.works) {
			t.Fatalf("%d were judged again, %v", n, err)
		}
		time.Sleep(time.Second)
		errs := c.end(c.works, func() {}, func(w *bmdb.Work) error {
			return w.Fail(t.Context(), bmdb.Failure{
				Cause: "x", Backoff: fleet.Backoff{Initial: time.Second, Maximum: time.Second}, RetryAfter: 3 * time.Second,
			})
		})
		for i, err := range errs {
			if err != nil {
				t.Errorf("the end of work %d: %v", i, err)
			}
		}
		findings, err := c.db.Check(t.Context())
		if err != nil || len(findings) > 0 {
			t.Errorf("%v, %v", findings, err)
		}
	})
}

// TestEndsTogetherSeeARetry: an operator ends the backoff of a machine that is being worked on
// already, which shows nowhere until the work fails.
func TestEndsTogetherSeeARetry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newEnders(t)
		defer closed(t, c.db)
		fail := func(w *bmdb.Work) error {
			backoff := fleet.Backoff{Initial: time.Second, Exponent: 2, Maximum: time.Minute}
			return w.Fail(t.Context(), bmdb.Failure{Cause: "x", Backoff: backoff})
		}
		for _, w := range c.works {
			if err := fail(w); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Second)
		works := c.claim(c.session, len(c.works))
		retried := works[2].Subject.Machine
		errs := c.end(works, func() {
			if _, err := c.db.Retry(t.Context(), "me", retried, ""); err != nil {
				t.Fatal(err)
			}
		}, fail)
		for i, w := range works {
			record, err := c.db.Machine(t.Context(), w.Subject.Machine)
			if err != nil || errs[i] != nil {
				t.Fatal(err, errs[i])
			}
			want := 2 * time.Second
			if w.Subject.Machine == retried {
				want = time.Second
			}
			if got := record.Backoffs[fleet.ProcessAgentStart].Interval; got != want {
				t.Errorf("work %d failed and waits for %s, want %s", i, got, want)
			}
		}
	})
}

// failures counts the transactions that an observer is told have failed.
type failures struct{ atomic.Int64 }

func (f *failures) Transaction(_ string, _ time.Duration, _ int, err error) {
	if err != nil {
		f.Add(1)
	}
}

func (f *failures) Outcome(fleet.Process, string, time.Duration) {}

func (f *failures) Happened(bmdb.Happening, string) {}

// TestAnEndThatIsLeftIsNoFailure: an end that everything is known for is tried, left because its
// epoch has gone, and then refused: one failure and not two.
func TestAnEndThatIsLeftIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen failures
		c := observed(t, &seen)
		defer closed(t, c.db)
		old := c.works[0]
		if err := bmdbtest.Quarantine(t.Context(), c.db, "me", old.Subject.Machine, "x"); err != nil {
			t.Fatal(err)
		}
		if err := old.Finish(t.Context()); !lost(err) || seen.Load() != 1 {
			t.Errorf("%v, with %d failures", err, seen.Load())
		}
	})
}
