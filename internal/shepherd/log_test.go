package shepherd_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// passes is a handler of updates, whose subject is a provider.
type passes struct{ handler }

func (p passes) Scope() shepherd.Scope {
	scope := p.handler.Scope()
	scope.Process = fleet.ProcessUpdate
	return scope
}

// lines is where a log goes.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestAnOutageDoesNotFillTheLog: a loop has a line each minute that says why it does nothing, and
// not one for each time that it has tried.
func TestAnOutageDoesNotFillTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, engine := open(t)
		log := &lines{}
		options := shepherd.Options{Logger: slog.New(slog.NewTextHandler(log, nil))}
		seed(t, db, 1)
		run(t, db, handler(func(context.Context, *bmdb.Work) shepherd.Outcome { return shepherd.Fail{Err: errBroken} }), shepherd.DefaultConfig(), options)
		time.Sleep(20 * time.Second)
		broken := func(func() error) error { return errBroken }
		// Claims alone fail first.
		for _, extend := range []func(func() error) error{nil, broken} {
			engine.set(broken, extend)
			time.Sleep(10 * time.Minute)
		}
		engine.set(nil, nil)
		for _, message := range []string{"claim failed", "session could not be started"} {
			if n := strings.Count(log.String(), message); n < 10 || n > 15 {
				t.Errorf("%d lines of twenty minutes: %s", n, message)
			}
		}
	})
}

// TestPassesDoNotFillTheLog: work on a machine has its line. A provider's passes come by the clock,
// for ever, and have theirs only for those who look for faults.
func TestPassesDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := open(t)
		seed(t, db, 1)
		log := &lines{}
		options := shepherd.Options{Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelInfo}))}
		run(t, db, handler(func(_ context.Context, work *bmdb.Work) shepherd.Outcome { return started(work) }), shepherd.DefaultConfig(), options)
		seen, ended := &recorder{}, atomic.Int32{}
		options.Observer = seen
		run(t, db, passes{func(ctx context.Context, _ *bmdb.Work) shepherd.Outcome {
			if ended.Add(1) > 1 {
				<-ctx.Done()
			}
			return shepherd.Finish{}
		}}, shepherd.DefaultConfig(), options)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if seen.count(shepherd.ResultFinished) == 0 {
			t.Fatal("no pass has ended")
		}
		text := log.String()
		if !strings.Contains(text, `"work finished" process=agent-start`) || strings.Contains(text, `"work finished" process=update`) {
			t.Errorf("%s", text)
		}
	})
}
