package updater_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
	"github.com/ironherd/ironherd/internal/shepherd/updater"
)

// hanging is a provider that never answers for the machine that it is asked for first.
type hanging struct {
	*shepherdtest.FakeProvider
	asked []fleet.ProviderID
	onAsk func()
	took  time.Duration
}

func (h *hanging) Get(ctx context.Context, id fleet.ProviderID) (provider.Entry, error) {
	h.asked = append(h.asked, id)
	h.onAsk()
	if id != h.asked[0] {
		return h.FakeProvider.Get(ctx, id)
	}
	start := time.Now()
	<-ctx.Done()
	h.took = time.Since(start)
	return provider.Entry{}, fleet.ContextError(ctx)
}

// TestAProviderThatHangsWhenAsked: what its list says is written before, the first question that is
// not answered is the last one, and the next pass begins with the next machine.
func TestAProviderThatHangsWhenAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 6)
		for range 4 {
			b.pass()
		}
		devices := b.fake.Devices()
		for _, lost := range devices[:2] {
			b.fake.Change(lost.ID, func(*provider.Entry) bool { return false })
		}
		b.fake.Change(devices[2].ID, func(e *provider.Entry) bool { e.Location = "there"; return true })
		h := &hanging{FakeProvider: b.fake}
		h.onAsk = func() {
			if got := b.provided(2).Location; got != "there" {
				t.Errorf("while the provider is asked for another one, a machine is at %q", got)
			}
		}
		handler, err := updater.New(b.db, []updater.Source{{Name: source, Provider: h, Config: updater.DefaultConfig()}}, updater.Options{})
		check(t, err)
		b.loop, err = shepherd.New(b.db, handler, shepherd.DefaultConfig(), shepherd.Options{SessionLease: 10 * time.Minute})
		check(t, err)
		gone := func() (n int) {
			t.Helper()
			for i := range 2 {
				if b.provided(i).Status == fleet.ProviderStatusGone {
					n++
				}
			}
			return n
		}
		if outcome, failed := b.pass().(shepherd.Fail); failed {
			t.Errorf("the pass failed: %v", outcome.Err)
		}
		if len(h.asked) != 1 || h.took != 30*time.Second || gone() != 0 {
			t.Fatalf("asked for %v, the first one took %s, %d are gone", h.asked, h.took, gone())
		}
		b.pass()
		if len(h.asked) != 3 || h.asked[1] == h.asked[0] || h.asked[2] != h.asked[0] || gone() != 1 {
			t.Errorf("asked for %v of %v, %d are gone", h.asked, devices[:2], gone())
		}
	})
}

// TestAProviderThatFailsForOneMachine is asked for the others in the same pass.
func TestAProviderThatFailsForOneMachine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 6)
		for range 4 {
			b.pass()
		}
		for _, lost := range b.fake.Devices()[:2] {
			b.fake.Change(lost.ID, func(*provider.Entry) bool { return false })
		}
		asked := 0
		b.fake.Hook = func(point shepherdtest.Point, _ fleet.CapacityID) error {
			if point != shepherdtest.Asking {
				return nil
			}
			if asked++; asked == 1 {
				return fleet.Errorf(fleet.KindTemporary, "out of order")
			}
			return nil
		}
		b.pass()
		gone := 0
		for i := range 2 {
			if b.provided(i).Status == fleet.ProviderStatusGone {
				gone++
			}
		}
		if asked != 2 || gone != 1 {
			t.Errorf("asked for %d, and %d are gone", asked, gone)
		}
	})
}

// TestAnInvalidEntryIsLeftAlone, and the others of the same list are followed.
func TestAnInvalidEntryIsLeftAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		for range 3 {
			b.pass()
		}
		before := b.provided(0)
		for i, invalid := range []string{"it has two addresses", ""} {
			b.fake.Change(b.device(i).ID, func(e *provider.Entry) bool { e.Location, e.Invalid = "there", invalid; return true })
		}
		b.pass()
		if p := b.provided(0); !provider.SameFact(p, before) {
			t.Errorf("of an invalid entry came %+v, before %+v", p, before)
		}
		if p := b.provided(1); p.Location != "there" {
			t.Errorf("the other one is at %q", p.Location)
		}
	})
}
