package daemon

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// hanging is an engine whose commits wait for the disk, whatever their context says.
type hanging struct {
	bmdb.Engine
	disk chan struct{} // full while the disk hangs
}

func (h *hanging) Update(ctx context.Context, fn func(context.Context, bmdb.Tx) error) error {
	h.disk <- struct{}{}
	defer func() { <-h.disk }()
	return h.Engine.Update(ctx, fn)
}

// TestHealthNoticesADiskThatHangs though the database can be read, and until it hangs no more.
func TestHealthNoticesADiskThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := &hanging{Engine: shepherdtest.OpenEngine(t), disk: make(chan struct{}, 1)}
		h := newDatabaseHealth(shepherdtest.OpenDB(t, engine, bmdb.Options{}))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- h.serve(ctx) }()
		if err := h.check(ctx); err != nil {
			t.Errorf("all is well, and health says: %v", err)
		}
		time.Sleep(commitSpacing)
		engine.disk <- struct{}{}
		if err := h.check(ctx); err != nil {
			t.Errorf("a slow disk is no fault, and health says: %v", err)
		}
		time.Sleep(commitPatience)
		for range 3 {
			if err := h.check(ctx); err == nil || !strings.Contains(err.Error(), "the database takes no changes: a commit has not ended for 1") {
				t.Errorf("a disk that hangs: %v", err)
			}
		}
		<-engine.disk
		synctest.Wait()
		time.Sleep(commitSpacing)
		if err := h.check(ctx); err != nil {
			t.Errorf("the disk hangs no more, and health says: %v", err)
		}
		cancel()
		<-ended
	})
}

// reading is an engine whose reads, once it is held, wait until they are let go, and are counted.
type reading struct {
	bmdb.Engine
	held  atomic.Bool
	letGo chan struct{}
	n     atomic.Int32
}

func (r *reading) View(ctx context.Context, fn func(context.Context, bmdb.Tx) error) error {
	if r.held.Load() {
		r.n.Add(1)
		select {
		case <-r.letGo:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return r.Engine.View(ctx, fn)
}

// TestHealthReadsLittleAtATime, however many ask: nobody needs a token for that.
func TestHealthReadsLittleAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := &reading{Engine: shepherdtest.OpenEngine(t), letGo: make(chan struct{})}
		h := newDatabaseHealth(shepherdtest.OpenDB(t, engine, bmdb.Options{}))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- h.serve(ctx) }()
		engine.held.Store(true)
		const callers = 20
		answers := make(chan error, callers)
		for range callers {
			go func() { answers <- h.check(ctx) }()
		}
		synctest.Wait()
		if n := engine.n.Load(); n != readsAtATime {
			t.Errorf("%d read at a time, want %d", n, readsAtATime)
		}
		close(engine.letGo)
		for range callers {
			if err := <-answers; err != nil {
				t.Errorf("the database answers, and health says: %v", err)
			}
		}
		cancel()
		<-ended
	})
}
