package sqlite_test

import (
	"context"
	"path/filepath"
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

// crowd is a session with work, one end of which is held back while others come.
type crowd struct {
	*testing.T
	engine  *gated
	db      *bmdb.DB
	session *bmdb.Session
	works   []*bmdb.Work
}

func newCrowd(t *testing.T) *crowd {
	t.Helper()
	c := &crowd{T: t, engine: &gated{Engine: open(t, filepath.Join(t.TempDir(), "bmdb")), gate: make(chan struct{})}}
	db, err := bmdb.Open(t.Context(), c.engine, bmdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c.db = db
	ids := make([]fleet.MachineID, 5)
	for i := range ids {
		ids[i] = fleet.NewMachineID()
	}
	if err := bmdbtest.Stock(t.Context(), db, "p", ids, nil); err != nil {
		t.Fatal(err)
	}
	c.session = c.start("crowd")
	c.works = c.claim(c.session, len(ids))
	return c
}

func (c *crowd) start(component string) *bmdb.Session {
	c.Helper()
	s, err := c.db.StartSession(c.Context(), bmdb.SessionOptions{Component: component, Interval: 10 * time.Second})
	if err != nil {
		c.Fatal(err)
	}
	return s
}

func (c *crowd) claim(s *bmdb.Session, n int) []*bmdb.Work {
	c.Helper()
	claim, err := s.Claim(c.Context(), bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: n})
	if err != nil || len(claim.Works) != n {
		c.Fatalf("claimed %d, %v", len(claim.Works), err)
	}
	return claim.Works
}

// finish holds the end of the first work back until the others wait, and whatever comes meanwhile has happened; then all go on. It
// returns what became of each.
func (c *crowd) finish(works []*bmdb.Work, meanwhile func()) []error {
	c.Helper()
	errs := make([]error, len(works))
	done := make(chan struct{}, len(works))
	c.engine.armed.Store(true)
	for i, w := range works {
		go func() {
			errs[i] = w.Finish(c.Context())
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

// TestEndsTogetherNameTheirEpochs: among ends that are committed together is one of an epoch that has gone, by the session that holds
// the machine's lane again.
func TestEndsTogetherNameTheirEpochs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t)
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

// TestEndsTogetherNeedTheirSession: it ends while they wait, and only one of its lanes has been taken over.
func TestEndsTogetherNeedTheirSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t)
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
