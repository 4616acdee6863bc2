package shepherd_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// asked is a provider that answers in its own way.
type asked struct {
	provider.Provider
	get func(ctx context.Context) error
}

func (a asked) Get(ctx context.Context, _ fleet.ProviderID) (provider.Entry, error) {
	return provider.Entry{}, a.get(ctx)
}

// TestAProviderThatHangsIsLeft, and whoever asked it is told which one that is.
func TestAProviderThatHangsIsLeft(t *testing.T) {
	t.Parallel()
	hangs := func(ctx context.Context) error { <-ctx.Done(); return fleet.ContextError(ctx) }
	broken := errors.New("the connection broke")
	for name, test := range map[string]struct {
		get   func(context.Context) error
		limit time.Duration // of the caller; zero: none
		took  time.Duration
		kind  fleet.Kind
		words string
	}{
		"it hangs":                        {hangs, 0, 30 * time.Second, fleet.KindTimeout, "provider rack did not answer within 30s"},
		"it hangs, and says something":    {func(ctx context.Context) error { <-ctx.Done(); return broken }, 0, 30 * time.Second, fleet.KindTimeout, "within 30s: the connection broke"},
		"its caller ends before":          {hangs, time.Second, time.Second, fleet.KindTimeout, "deadline exceeded"},
		"it does not have the machine":    {func(context.Context) error { return fleet.Errorf(fleet.KindNotFound, "no such host") }, 0, 0, fleet.KindNotFound, "no such host"},
		"it answers at the last possible": {func(context.Context) error { time.Sleep(29 * time.Second); return nil }, 0, 29 * time.Second, fleet.KindUnknown, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if test.limit > 0 {
					limited, cancel := context.WithTimeout(ctx, test.limit)
					defer cancel()
					ctx = limited
				}
				start := time.Now()
				_, err := shepherd.Source[struct{}]{Name: "rack", Provider: asked{get: test.get}}.Ask(ctx, "host-1")
				if took := time.Since(start); took != test.took || fleet.KindOf(err) != test.kind || (err == nil) != (test.words == "") {
					t.Errorf("after %s, %s: %v", took, fleet.KindOf(err), err)
				}
				if err != nil && (!strings.Contains(err.Error(), test.words) || strings.Contains(err.Error(), "rack") != (test.took == 30*time.Second)) {
					t.Errorf("it says %q", err)
				}
			})
		})
	}
}

// several is a handler of the machines of two providers.
type several struct{ handler }

func (s several) Scope() shepherd.Scope {
	scope := s.handler.Scope()
	scope.Providers = []fleet.ProviderName{"fine", "hung"}
	return scope
}

// TestAProviderThatHangsLeavesSlotsToTheOthers: however many of its machines are due, and were due
// before, those of another provider get half of the slots. When nothing is due there, it has all.
func TestAProviderThatHangsLeavesSlotsToTheOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := open(t)
		shepherdtest.Seed(t, db, "hung", shepherdtest.NewFakeProvider(100), 100)
		time.Sleep(time.Second)
		fine := shepherdtest.Seed(t, db, "fine", shepherdtest.NewFakeProvider(20), 20)
		for _, id := range fine[10:] {
			if err := bmdbtest.Quarantine(t.Context(), db, "test", id, "not yet"); err != nil {
				t.Fatal(err)
			}
		}
		var done, hanging, beside, peak atomic.Int32
		run(t, db, several{func(_ context.Context, work *bmdb.Work) shepherd.Outcome {
			if work.Record.Machine.Provider == "fine" {
				beside.Store(max(beside.Load(), hanging.Load()))
				time.Sleep(500 * time.Millisecond)
				done.Add(1)
				return started(work)
			}
			peak.Store(max(peak.Load(), hanging.Add(1)))
			defer hanging.Add(-1)
			time.Sleep(30 * time.Second)
			return shepherd.Fail{Err: errors.New("it hangs"), Backoff: fleet.Backoff{Initial: time.Hour}}
		}}, shepherd.DefaultConfig(), shepherd.Options{})
		time.Sleep(2 * time.Second)
		if done.Load() != 10 || beside.Load() > 5 {
			t.Errorf("%d of 10 machines are done, beside %d that hang", done.Load(), beside.Load())
		}
		time.Sleep(10 * time.Second)
		if peak.Load() != 10 {
			t.Errorf("at most %d slots were used while nothing was due at the other provider", peak.Load())
		}
		for _, id := range fine[10:] {
			if err := bmdbtest.Unquarantine(t.Context(), db, "test", id, "now"); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(25 * time.Second) // once round, and then some
		if done.Load() != 20 {
			t.Errorf("%d of 20 machines are done", done.Load())
		}
	})
}

// views counts how often the BMDB is asked what it knows of a provider.
type views struct{ atomic.Int32 }

// Transaction implements bmdb.Observer, as the following do.
func (v *views) Transaction(kind string, _ time.Duration, _ int, _ error) {
	if kind == "view provider" {
		v.Add(1)
	}
}

func (*views) Outcome(fleet.Process, string, time.Duration) {}

func (*views) Happened(bmdb.Happening, string) {}

// TestWhatIsGoneCostsNoSecondRead: of the machines that a list lacks, only those that are not known
// to be gone have the BMDB read once more.
func TestWhatIsGoneCostsNoSecondRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		seen, fake := new(views), shepherdtest.NewFakeProvider(2)
		db := shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{Observer: seen})
		ids := shepherdtest.Seed(t, db, source, fake, 2)
		look := func(when string, want int32) bmdb.ProviderView {
			t.Helper()
			before := seen.Load()
			_, view, err := shepherd.Source[struct{}]{Name: source, Provider: fake}.Look(t.Context(), db, fake.List)
			if reads := seen.Load() - before; err != nil || reads != want {
				t.Errorf("%s, the BMDB is read %d times, want %d: %v", when, reads, want, err)
			}
			return view
		}
		look("while all are listed", 1)
		fake.Change(fake.Devices()[0].ID, func(*provider.Entry) bool { return false })
		view := look("while nobody knows what became of one", 2)
		time.Sleep(time.Minute) // until a pass is due
		session, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: "test", Host: "test", Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		claim, err := session.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessUpdate, Providers: []fleet.ProviderName{source}, Limit: 1})
		if err != nil || len(claim.Works) != 1 {
			t.Fatalf("claimed %d passes, %v", len(claim.Works), err)
		}
		for _, m := range view.Machines {
			if m.ID == ids[0] {
				err = claim.Works[0].Note(t.Context(), bmdb.SetProvided(m.ID, m.ProviderID, provider.Gone(m.Provided)))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		look("while that one is known to be gone", 1)
	})
}
