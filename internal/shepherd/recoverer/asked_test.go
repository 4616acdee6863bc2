package recoverer_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/recoverer"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// asked is a provider that notes when it is asked for a machine, and since when that has been
// asked. It shows none at first.
type asked struct {
	*shepherdtest.FakeProvider

	mu        sync.Mutex
	hides     int
	at, since []time.Time
}

func (a *asked) Get(ctx context.Context, id fleet.ProviderID) (provider.Entry, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at, a.since = append(a.at, time.Now()), append(a.since, provider.AskedSince(ctx))
	if len(a.at) <= a.hides {
		return provider.Entry{}, fleet.Errorf(fleet.KindForbidden, "not for you")
	}
	return a.FakeProvider.Get(ctx, id)
}

// TestWhetherItIsGoneIsANewQuestion, which is asked again while there is no answer: what the
// provider has learned before recovery asked says nothing of the machine.
func TestWhetherItIsGoneIsANewQuestion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, _ := newHerd(t, 8, nil)
		at := &asked{FakeProvider: herd.Fake, hides: 3}
		handler, err := recoverer.New(herd.DB, []recoverer.Source{{Name: herd.Name, Provider: at}}, recoverer.DefaultConfig(), recoverer.Options{})
		check(t, err)
		id := herd.Machines()[0]
		defer herd.Start(handler)()
		time.Sleep(2 * time.Minute)
		herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = true })
		time.Sleep(3 * time.Hour)
		at.mu.Lock()
		defer at.mu.Unlock()
		if got := levers(herd, id); len(at.at) != at.hides+1 || got != "reboot" {
			t.Fatalf("it was asked for at %s, pulled %q", at.at, got)
		}
		for _, since := range at.since {
			if late := since.Sub(at.at[0]); late < 0 || late > time.Second {
				t.Errorf("the question of %s is one since %s", at.at[0], since)
			}
		}
	})
}
