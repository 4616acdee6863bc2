package provisioner_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
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
// the first question that is not answered is the last one, and the passes after it ask for other
// machines.
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
		all := make(map[fleet.ProviderID]bool)
		for range 3 {
			h.asked = nil
			outcome, took := b.passTook()
			if failed, is := outcome.(shepherd.Fail); is {
				t.Errorf("the pass failed: %v", failed.Err)
			}
			if took > 31*time.Second || len(h.asked) > 2 {
				t.Errorf("the pass took %s, and asked for %v", took, h.asked)
			}
			for _, id := range h.asked {
				all[id] = true
			}
		}
		if len(all) != 3 || gone() != 1 {
			t.Errorf("the passes asked for %v, %d are gone", all, gone())
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

// TestOneMachineThatHangsStarvesNoOther: whatever is asked about it, and however early in a pass, a
// machine that is missing is found to be gone, and so is the one that hung, once it does not.
func TestOneMachineThatHangsStarvesNoOther(t *testing.T) {
	t.Parallel()
	for _, asked := range []string{"to be adopted", "given back"} {
		t.Run(asked, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 10)
				h := &hanging{FakeProvider: b.fake, onAsk: func() {}}
				b.provider = h
				b.restart()
				b.passes(4)
				hangs := []fleet.ProviderID{b.release("capacity-000").ID, b.release("capacity-001").ID}
				b.pass()
				for _, id := range hangs {
					if asked == "to be adopted" {
						b.adopt(id)
						b.fake.Change(id, func(*provider.Entry) bool { return false })
					}
				}
				time.Sleep(b.config.SettlingTime)
				b.restart()
				h.hangs = hangs
				lost := b.view().Machines[3]
				b.fake.Change(lost.ProviderID, func(*provider.Entry) bool { return false })
				b.passes(3)
				if !slices.ContainsFunc(b.view().Machines, func(m bmdb.ProviderMachine) bool {
					return m.ID == lost.ID && m.Provided.Status == fleet.ProviderStatusGone
				}) {
					t.Errorf("three passes asked for %v, and not for %s", h.asked, lost.ProviderID)
				}
				h.hangs, h.asked = nil, nil
				b.passes(2)
				for _, id := range hangs {
					if !slices.Contains(h.asked, id) {
						t.Errorf("%s hangs no more, and is not asked for", id)
					}
				}
			})
		})
	}
}

// adopt asks for a machine to be adopted.
func (b *bench) adopt(id fleet.ProviderID) {
	b.t.Helper()
	if err := b.db.RequestAdoption(b.t.Context(), "ada", source, id, false, "it is needed"); err != nil {
		b.t.Fatal(err)
	}
}

// TestEachIsAskedForSomeTime, where there are more than a pass asks for.
func TestEachIsAskedForSomeTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 25)
		h := &hanging{FakeProvider: b.fake, onAsk: func() {}}
		b.provider = h
		for n := range 25 {
			if _, err := b.fake.Land(fleet.CapacityID(fmt.Sprintf("capacity-%03d", n))); err != nil {
				t.Fatal(err)
			}
		}
		b.restart()
		time.Sleep(b.config.SettlingTime)
		b.restart()
		b.pass()
		h.asked = nil // whether it has the machines that nobody knows
		for _, device := range b.fake.Devices() {
			b.adopt(device.ID)
		}
		b.fake.Hide = func(provider.Entry) bool { return true }
		b.passes(6)
		slices.Sort(h.asked)
		if all := slices.Compact(slices.Clone(h.asked)); len(all) != 25 || len(h.asked) != 6*20 {
			t.Errorf("%d questions were about %v", len(h.asked), all)
		}
	})
}

// TestNothingIsSaidToBeAskedThatWasNot: in a pass that does not ask for it, the discrepancy of a
// missing machine stays, and tells no answer. The log has no line for each machine.
func TestNothingIsSaidToBeAskedThatWasNot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 10)
		h := &hanging{FakeProvider: b.fake, onAsk: func() {}}
		var log bytes.Buffer
		b.provider, b.logger = h, slog.New(slog.NewTextHandler(&log, nil))
		b.restart()
		b.passes(4)
		h.hangs = []fleet.ProviderID{b.release("capacity-000").ID, b.release("capacity-001").ID}
		time.Sleep(b.config.SettlingTime)
		b.restart()
		lost := b.view().Machines[3]
		b.fake.Change(lost.ProviderID, func(*provider.Entry) bool { return false })
		b.passes(3)
		b.answered(lost)
		h.asked = nil
		log.Reset()
		b.pass()
		found := b.view().Discrepancies
		if len(h.asked) != 1 || len(found) != 1 || strings.Contains(found[0].Evidence, "no clear answer") || !strings.Contains(found[0].Evidence, "did not ask again") {
			t.Errorf("it was asked for %v, and the discrepancies are %+v", h.asked, found)
		}
		if lines := strings.Count(log.String(), "cannot be asked for"); lines != 1 {
			t.Errorf("%d machines cannot be asked for: %s", lines, log.String())
		}
	})
}

// answered records that the provider has shown the machine, which a list lacks.
func (b *bench) answered(m bmdb.ProviderMachine) {
	b.t.Helper()
	s, err := b.db.StartSession(b.t.Context(), bmdb.SessionOptions{Component: "update", Host: "test", Lease: 5 * time.Second})
	if err != nil {
		b.t.Fatal(err)
	}
	claim, err := s.Claim(b.t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessUpdate, Providers: []fleet.ProviderName{source}, Limit: 1})
	if err != nil || len(claim.Works) != 1 {
		b.t.Fatalf("%+v, %v", claim, err)
	}
	if err := claim.Works[0].Finish(b.t.Context(), bmdb.SetProvided(m.ID, m.ProviderID, *m.Provided)); err != nil {
		b.t.Fatal(err)
	}
	if err := s.Close(b.t.Context(), "done"); err != nil {
		b.t.Fatal(err)
	}
}
