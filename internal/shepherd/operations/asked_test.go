package operations_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// asked is a provider that notes since when what it is asked has been asked for. It shows no
// machine at first.
type asked struct {
	*shepherdtest.FakeProvider

	mu     sync.Mutex
	hides  int
	since  []time.Time
	levers []time.Time
}

func (a *asked) Get(ctx context.Context, id fleet.ProviderID) (provider.Entry, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.since = append(a.since, provider.AskedSince(ctx)); len(a.since) <= a.hides {
		return provider.Entry{}, fleet.Errorf(fleet.KindForbidden, "not for you")
	}
	return a.FakeProvider.Get(ctx, id)
}

func (a *asked) Release(ctx context.Context, id fleet.ProviderID) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.levers = append(a.levers, provider.AskedSince(ctx))
	return a.FakeProvider.Release(ctx, id)
}

// TestWhetherItIsGoneIsAskedSinceTheRequest: what the provider has learned before says nothing of a
// machine that is to be given back, however often it is asked for.
func TestWhetherItIsGoneIsAskedSinceTheRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		at := &asked{hides: 3}
		herd, handler := bench(t, 1, operations.Options{}, nil, func(fake *shepherdtest.FakeProvider) provider.Provider {
			at.FakeProvider = fake
			return at
		})
		id := herd.Machines()[0]
		defer herd.Start(handler)()
		time.Sleep(2 * time.Minute)
		requested := time.Now()
		_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationRelease, "it is old")
		check(t, err)
		time.Sleep(20 * time.Minute)
		at.mu.Lock()
		defer at.mu.Unlock()
		if len(at.since) <= at.hides || len(at.levers) != 1 {
			t.Errorf("it was asked for %d times, and given back %d times", len(at.since), len(at.levers))
		}
		for _, since := range append(at.since, at.levers...) {
			if late := since.Sub(requested); late < 0 || late > time.Second {
				t.Errorf("a question of the request of %s is one since %s", requested, since)
			}
		}
	})
}

// TestWhetherItHasFailedIsANewQuestion, for which nobody asked, while there is no answer.
func TestWhetherItHasFailedIsANewQuestion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		at := &asked{hides: 3}
		herd, handler := bench(t, 1, operations.Options{}, func(p *fleet.Policy) { p.ReplaceFailed = true }, func(fake *shepherdtest.FakeProvider) provider.Provider {
			at.FakeProvider = fake
			return at
		})
		id := herd.Machines()[0]
		fact := *herd.Record(id).Provided
		fact.Status = fleet.ProviderStatusFailed
		set(t, herd, bmdb.SetProvided(id, herd.Host(id).ID, fact))
		defer herd.Start(handler)()
		begins := time.Now()
		time.Sleep(20 * time.Minute)
		at.mu.Lock()
		defer at.mu.Unlock()
		if len(at.since) <= at.hides {
			t.Errorf("it was asked for %d times", len(at.since))
		}
		for _, since := range at.since {
			if late := since.Sub(begins); late < 0 || late > time.Minute {
				t.Errorf("a question of %s is one since %s", begins, since)
			}
		}
	})
}
