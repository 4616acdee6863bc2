package provisioner_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// hanging is a provider that lists, and does not answer for those of its machines.
type hanging struct {
	*shepherdtest.FakeProvider
	onAsk func()
	hangs []fleet.ProviderID
	asked []fleet.ProviderID
}

func (h *hanging) Get(ctx context.Context, id fleet.ProviderID) (provider.Entry, error) {
	h.asked = append(h.asked, id)
	h.onAsk()
	if !slices.Contains(h.hangs, id) {
		return h.FakeProvider.Get(ctx, id)
	}
	select {
	case <-ctx.Done():
		return provider.Entry{}, fleet.ContextError(ctx)
	case <-time.After(2 * time.Minute): // five attempts
		return provider.Entry{}, fleet.Errorf(fleet.KindTimeout, "given up after 5 attempts")
	}
}

// TestAProviderThatHangsWhenAsked: what its list says is recorded before it is asked for a machine,
// the first question that is not answered is the last one, and the next pass begins with another
// machine.
func TestAProviderThatHangsWhenAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 10)
		b.config.MaxMachines = 9
		h := &hanging{FakeProvider: b.fake, onAsk: func() {}}
		b.provider = h
		b.restart()
		b.passes(2)
		time.Sleep(b.config.SettlingTime)
		b.config.MaxMachines = 10
		b.restart()
		b.fake.Hook = once(shepherdtest.Created, 1, func(fleet.CapacityID) error { return errReplyLost })
		b.pass()
		b.fake.Hook = nil
		if v := b.view(); len(v.Machines) != 9 || len(v.Intents) != 1 {
			t.Fatalf("%d machines, intents %+v", len(v.Machines), v.Intents)
		}
		lost := b.view().Machines[:3]
		for _, m := range lost {
			b.fake.Change(m.ProviderID, func(*provider.Entry) bool { return false })
		}
		h.hangs = []fleet.ProviderID{lost[0].ProviderID, lost[1].ProviderID}
		h.onAsk = func() {
			if v := b.view(); len(v.Machines) != 10 || len(v.Intents) != 0 {
				t.Errorf("while the provider is asked: %d machines, intents %+v", len(v.Machines), v.Intents)
			}
		}
		gone := func() (n int) {
			for _, m := range b.view().Machines {
				if m.Provided != nil && m.Provided.Status == fleet.ProviderStatusGone {
					n++
				}
			}
			return n
		}
		first := make(map[fleet.ProviderID]bool)
		for range 3 {
			h.asked = nil
			outcome, took := b.passTook()
			if failed, is := outcome.(shepherd.Fail); is {
				t.Errorf("the pass failed: %v", failed.Err)
			}
			if took > 31*time.Second || len(h.asked) == 0 || len(h.asked) > 2 {
				t.Errorf("the pass took %s, and asked for %v", took, h.asked)
			}
			first[h.asked[0]] = true
		}
		if len(first) < 2 || gone() != 1 {
			t.Errorf("the passes asked for %v first, %d are gone", first, gone())
		}
	})
}

// passTook runs one pass, and returns how long its work took.
func (b *bench) passTook() (shepherd.Outcome, time.Duration) {
	b.t.Helper()
	task := b.claim()
	defer b.keep()()
	start := time.Now()
	task.Act(b.t.Context())
	took := time.Since(start)
	if err := task.Commit(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	return task.Outcome(), took
}
