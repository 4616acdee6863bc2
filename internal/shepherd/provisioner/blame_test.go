package provisioner_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/provider/static"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// unblamed fails the test unless the last pass failed with that text, and left its intents as they
// were: open, without a call, and no capacity with a penalty.
func (b *bench) unblamed(outcome shepherd.Outcome, says string, intents int) {
	b.t.Helper()
	if failed, is := outcome.(shepherd.Fail); !is || !strings.Contains(failed.Err.Error(), says) || !strings.Contains(b.result(), says) {
		b.t.Errorf("the pass ended as %s, and says %q", text(outcome), b.result())
	}
	view := b.view()
	if len(view.Penalties) != 0 || len(view.Intents) != intents {
		b.t.Errorf("%d intents are open, want %d; penalties %+v", len(view.Intents), intents, view.Penalties)
	}
	for _, intent := range view.Intents {
		if intent.Calls != 0 {
			b.t.Errorf("a call was recorded for %s", intent.Machine)
		}
	}
}

// TestNoCapacityIsBlamedForTheConfiguration: what every creation fails by before its call ends the
// pass at the first one, and the pass after it was put right goes on.
func TestNoCapacityIsBlamedForTheConfiguration(t *testing.T) {
	t.Parallel()
	for _, kind := range []fleet.Kind{
		fleet.KindConflict, fleet.KindInvalid, fleet.KindNotFound, fleet.KindUnsupported, fleet.KindTemporary, fleet.KindForbidden,
	} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 5)
				begun := 0
				b.fake.Hook = func(point shepherdtest.Point, _ fleet.CapacityID) error {
					if point != shepherdtest.Creating {
						return nil
					}
					begun++
					return fleet.Errorf(kind, "the project has another SSH key under the label")
				}
				b.unblamed(b.pass(), "another SSH key under the label", 5)
				if begun != 1 {
					t.Errorf("%d creations were begun in vain", begun)
				}
				b.fake.Hook = nil
				b.pass()
				b.agree(5)
			})
		})
	}
}

// TestCapacityIsBlamedBeforeTheCall: what a provider says of one piece of capacity before the call
// closes its intent, and the others are created.
func TestCapacityIsBlamedBeforeTheCall(t *testing.T) {
	t.Parallel()
	for kind, blamed := range map[fleet.Kind]bool{
		fleet.KindConflict: true, fleet.KindInvalid: true, fleet.KindNotFound: true, fleet.KindForbidden: false, fleet.KindTemporary: false,
	} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 3)
				b.fake.Hook = func(point shepherdtest.Point, capacity fleet.CapacityID) error {
					if point == shepherdtest.Creating && capacity == "capacity-001" {
						return fmt.Errorf("create: %w", provider.OfCapacity(fleet.Errorf(kind, "not this one")))
					}
					return nil
				}
				b.pass()
				view := b.view()
				_, resting := view.Penalties["capacity-001"]
				if len(b.fake.Devices()) != 2 || resting != blamed || (len(view.Intents) == 0) != blamed {
					t.Errorf("%d devices, penalties %+v, intents %+v: %s", len(b.fake.Devices()), view.Penalties, view.Intents, b.result())
				}
			})
		})
	}
}

// TestAThrottledCreationEndsThePass: the next call comes after the time that the provider asks for,
// or after the backoff, and with the same intents.
func TestAThrottledCreationEndsThePass(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		point shepherdtest.Point
		after time.Duration
		calls int
	}{
		"a call":                        {point: shepherdtest.Refusing, calls: 1},
		"a call, and it says how long":  {point: shepherdtest.Refusing, after: 20 * time.Minute, calls: 1},
		"a question before it":          {point: shepherdtest.Creating},
		"a question, and says how long": {point: shepherdtest.Creating, after: 20 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 5)
				var asked []time.Time
				b.fake.Hook = func(point shepherdtest.Point, _ fleet.CapacityID) error {
					if point != test.point {
						return nil
					}
					asked = append(asked, time.Now())
					return &fleet.Error{Kind: fleet.KindThrottled, Message: "asked too often", RetryAfter: test.after}
				}
				for range 3 {
					outcome := b.pass()
					if failed, is := outcome.(shepherd.Fail); !is || fleet.RetryAfter(failed.Err) != test.after || !strings.Contains(b.result(), "asked too often") {
						t.Fatalf("the pass ended as %s, and says %q", text(outcome), b.result())
					}
				}
				if len(asked) != 3 {
					t.Fatalf("asked %d times in 3 passes", len(asked))
				}
				for i, least := range []time.Duration{b.config.Backoff.Initial, b.config.Backoff.Initial + 1} {
					if pause := asked[i+1].Sub(asked[i]); pause < max(least, test.after) {
						t.Errorf("asked again after %s", pause)
					}
				}
				calls := 0
				for _, intent := range b.view().Intents {
					calls += intent.Calls
					if intent.Calls != intent.Rejected {
						t.Errorf("a call of %s is open", intent.Machine)
					}
				}
				if view := b.view(); calls != 3*test.calls || len(view.Intents) != 5 || len(view.Penalties) != 0 {
					t.Errorf("%d calls, %d intents, penalties %+v", calls, len(view.Intents), view.Penalties)
				}
				b.fake.Hook = nil
				b.pass()
				b.agree(5)
			})
		})
	}
}

// TestACreationUnderWayEndsWell, though another one has found what keeps all from being created.
func TestACreationUnderWayEndsWell(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 4)
		b.config.CreateParallelism, b.config.CreateRate = 2, fleet.Rate{Every: time.Second, Burst: 1}
		b.restart()
		b.fake.Latency = 10 * time.Second
		b.fake.Hook = once(shepherdtest.Creating, 2, func(fleet.CapacityID) error { return fleet.Errorf(fleet.KindConflict, "the key") })
		b.unblamed(b.pass(), "the key", 3)
		if len(b.view().Machines) != 1 {
			t.Errorf("machines %+v", b.view().Machines)
		}
	})
}

// emptied is a list of hosts whose file is empty from the n-th creation on.
type emptied struct {
	*static.Provider
	path string
	left int
}

func (e *emptied) Create(ctx context.Context, request provider.CreateRequest) (provider.Entry, error) {
	if e.left--; e.left == 0 {
		if err := os.WriteFile(e.path, nil, 0o600); err != nil {
			return provider.Entry{}, err
		}
	}
	return e.Provider.Create(ctx, request)
}

// TestNoHostIsBlamedForTheList: a list that is empty for a moment, while a pass takes hosts in.
func TestNoHostIsBlamedForTheList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		list := "hosts:\n"
		for i := range 10 {
			list += fmt.Sprintf("  - {id: h%d, address: 192.0.2.%d}\n", i, i+1)
		}
		path := filepath.Join(t.TempDir(), "hosts.yaml")
		write := func() {
			if err := os.WriteFile(path, []byte(list), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write()
		p, err := static.New(static.Config{Path: path, InFlight: 1}, provider.Options{})
		if err != nil {
			t.Fatal(err)
		}
		b.provider, b.config = &emptied{Provider: p, path: path, left: 3}, provisioner.ListConfig()
		b.restart()
		b.unblamed(b.pass(), "it is empty", 8)
		write()
		b.pass()
		if view := b.view(); len(view.Machines) != 10 || len(view.Penalties) != 0 {
			t.Errorf("%d machines, penalties %+v: %s", len(view.Machines), view.Penalties, b.result())
		}
	})
}

// TestAProviderThatRefusesEachRequest fails the passes until one creates again, also when all other
// capacity sits out a penalty.
func TestAProviderThatRefusesEachRequest(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		kind         fleet.Kind
		most         int
		refuse       string // "": all capacity
		machines     int    // that are there before
		fails        bool
		open, passes int
	}{
		"all is refused":                       {kind: fleet.KindInvalid, fails: true, open: 1, passes: 4},
		"all is unsupported":                   {kind: fleet.KindUnsupported, fails: true, open: 1, passes: 4},
		"all that is left is refused":          {kind: fleet.KindInvalid, machines: 2, fails: true, open: 1, passes: 4},
		"one of several is refused":            {kind: fleet.KindInvalid, refuse: "capacity-001", passes: 4},
		"the last one is refused":              {kind: fleet.KindInvalid, machines: 3, passes: 4},
		"the one that there may be is refused": {kind: fleet.KindInvalid, most: 1, refuse: "capacity-000", fails: true, passes: 1},
		"all are taken by others":              {kind: fleet.KindConflict, passes: 4},
		"all is forbidden":                     {kind: fleet.KindForbidden, fails: true, open: 4, passes: 4},
		"the key is not known":                 {kind: fleet.KindUnauthenticated, fails: true, open: 4, passes: 4},
		"one of several is forbidden":          {kind: fleet.KindForbidden, refuse: "capacity-001", open: 1, passes: 4},
		"the last one is forbidden":            {kind: fleet.KindForbidden, machines: 3, open: 1, passes: 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 4)
				if test.machines > 0 {
					b.config.MaxMachines = test.machines
					b.restart()
					b.pass()
				}
				b.config.MaxMachines = test.most
				b.restart()
				b.fake.Hook = func(point shepherdtest.Point, capacity fleet.CapacityID) error {
					if point == shepherdtest.Refusing && (test.refuse == "" || test.refuse == string(capacity)) {
						return fleet.Errorf(test.kind, "no operating system of that name")
					}
					return nil
				}
				for range test.passes {
					outcome := b.pass()
					failed, is := outcome.(shepherd.Fail)
					if is && strings.Contains(failed.Err.Error(), "penalties") != (len(b.view().Penalties) > 0) {
						t.Errorf("penalties %+v, and it says %q", b.view().Penalties, failed.Err)
					}
					if is != test.fails || is && !strings.Contains(failed.Err.Error(), "no operating system of that name") {
						t.Fatalf("a pass ended as %s: %s", text(outcome), b.result())
					}
				}
				if open := b.view().Intents; len(open) != test.open {
					t.Errorf("%d intents are open, want %d: %+v", len(open), test.open, open)
				}
				if test.most > 0 { // the next piece of capacity has its turn
					b.pass()
					b.agree(test.most)
					return
				}
				b.fake.Hook = nil
				b.pass()
				time.Sleep(b.config.Penalty)
				b.restart() // the session has ended meanwhile
				b.passes(2)
				b.agree(4)
			})
		})
	}
}

// TestOnePieceOfCapacityIsRefused: of a provider that has made machines, one piece of capacity may
// be at fault, also when it failed otherwise before. When the next one is refused, too, and nothing
// was made in between, it is the provider.
func TestOnePieceOfCapacityIsRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		machines, most int
		kinds          []fleet.Kind // of the refusals, one for each pass
		fails          []bool
	}{
		"forbidden, and then refused": {3, 4, []fleet.Kind{fleet.KindForbidden, fleet.KindInvalid, fleet.KindInvalid}, []bool{false, false, false}},
		"one after the other":         {2, 3, []fleet.Kind{fleet.KindInvalid, fleet.KindInvalid, fleet.KindInvalid}, []bool{false, true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 4)
				b.config.MaxMachines = test.machines
				b.restart()
				b.pass()
				b.config.MaxMachines = test.most
				b.restart()
				for i, kind := range test.kinds {
					b.fake.Hook = func(point shepherdtest.Point, _ fleet.CapacityID) error {
						if point == shepherdtest.Refusing {
							return fleet.Errorf(kind, "no operating system of that name")
						}
						return nil
					}
					outcome := b.pass()
					if _, failed := outcome.(shepherd.Fail); failed != test.fails[i] {
						t.Errorf("pass %d ended as %s: %s", i+1, text(outcome), b.result())
					}
				}
			})
		})
	}
}
