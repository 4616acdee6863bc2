package shepherd_test

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// withForgotten is a handler that serves one more provider, which is not registered.
type withForgotten struct{ handler }

func (w withForgotten) Scope() shepherd.Scope {
	scope := w.handler.Scope()
	scope.Providers = append([]fleet.ProviderName{"forgotten"}, scope.Providers...)
	return scope
}

// TestAForgottenProviderKeepsNoLoopFromTheOthers: it is told once, and the others are served.
func TestAForgottenProviderKeepsNoLoopFromTheOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := open(t)
		seed(t, db, 3)
		log, done := &lines{}, atomic.Int32{}
		run(t, db, withForgotten{func(_ context.Context, work *bmdb.Work) shepherd.Outcome {
			done.Add(1)
			return started(work)
		}}, shepherd.DefaultConfig(), shepherd.Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := done.Load(); got < 3 {
			t.Errorf("%d of 3 machines had their turn", got)
		}
		if got := strings.Count(log.String(), "is not registered in the database"); got != 1 || !strings.Contains(log.String(), "provider=forgotten") {
			t.Errorf("told %d times: %s", got, log)
		}
	})
}
