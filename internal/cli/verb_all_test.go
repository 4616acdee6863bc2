package cli_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

// manyFleet has so many machines. The selector of a plan fits all of them.
type manyFleet struct {
	*fakeFleet
	n int
	// refuses is how many of the first machines nothing can be done to; fails is the number of the
	// plan whose confirmation is lost; busy is that of the plan that waits for its turn in vain.
	refuses, fails, busy int
	// old: it does not know after. unlisted: its list fails.
	old, unlisted bool

	mu    sync.Mutex
	made  *fleetv1.Plan
	plans int
	done  []string
}

func manyID(i int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", i) }

// behind returns the numbers of the machines of a page.
func (f *manyFleet) behind(after string, limit int32) (first, end int) {
	for first < f.n && manyID(first) <= after {
		first++
	}
	return first, min(f.n, first+int(limit))
}

func (f *manyFleet) ListMachines(_ context.Context, r *fleetv1.ListMachinesRequest) (*fleetv1.ListMachinesResponse, error) {
	if f.unlisted {
		return nil, connect.NewError(connect.CodeUnavailable, fmt.Errorf("it cannot list"))
	}
	first, end := f.behind(r.GetPageToken(), r.GetPageSize())
	a := &fleetv1.ListMachinesResponse{}
	for i := first; i < end; i++ {
		a.Machines = append(a.Machines, &fleetv1.Machine{Id: manyID(i)})
	}
	if end < f.n {
		a.NextPageToken = manyID(end - 1)
	}
	return a, nil
}

func (f *manyFleet) CreatePlan(_ context.Context, r *fleetv1.CreatePlanRequest) (*fleetv1.CreatePlanResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	after := r.GetAfter()
	if f.old {
		after = ""
	}
	first, end := f.behind(after, r.GetLimit())
	plan := &fleetv1.Plan{Verb: r.GetVerb(), NeedsConfirmation: end-first > 1, ExpiresAt: at(10, 10)}
	for i := first; i < end; i++ {
		m := &fleetv1.PlannedMachine{MachineId: manyID(i), Name: fmt.Sprintf("m%d", i)}
		if i < f.refuses {
			m.Refused = fmt.Sprintf("m%d is in maintenance", i)
		}
		plan.Machines = append(plan.Machines, m)
	}
	switch refused := end <= f.refuses; {
	case f.busy > 0 && f.plans+1 == f.busy:
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("no plan was made; ask again"))
	case refused && f.old:
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("m%d is in maintenance", first))
	case refused, first == end:
		return &fleetv1.CreatePlanResponse{Plan: plan}, nil
	}
	f.plans++
	plan.Id, f.made = fmt.Sprintf("plan%d", f.plans), plan
	return &fleetv1.CreatePlanResponse{Plan: f.made}, nil
}

func (f *manyFleet) ConfirmPlan(context.Context, *fleetv1.ConfirmPlanRequest) (*fleetv1.ConfirmPlanResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.plans == f.fails {
		return nil, connect.NewError(connect.CodeUnavailable, fmt.Errorf("the control plane is being stopped"))
	}
	f.made.ConfirmedAt = at(10, 1)
	for _, m := range f.made.GetMachines() {
		m.Outcome = "done"
		f.done = append(f.done, m.GetMachineId())
	}
	return &fleetv1.ConfirmPlanResponse{Plan: f.made}, nil
}

// TestAllThatASelectorFits: more machines than one plan can have are all reached, each once, also
// by whoever has to go on.
func TestAllThatASelectorFits(t *testing.T) {
	t.Parallel()
	quarantine := []string{"machine", "quarantine", "--provider", "metal", "--reason", "r"}
	for name, c := range map[string]struct {
		fleet *manyFleet
		args  []string
		code  int
		// those of the machines from first to last were done
		first, last int
		says        []string
	}{
		"all":            {&manyFleet{n: 2500}, []string{"--yes"}, 0, 0, 2499, []string{"1000 machines so far", "2000 machines so far. The next plan is for those behind " + manyID(1999)}},
		"just two plans": {&manyFleet{n: 2000}, []string{"--yes"}, 0, 0, 1999, nil},
		"one plan":       {&manyFleet{n: 1000}, []string{"--yes"}, 0, 0, 999, nil},
		"so many":        {&manyFleet{n: 2500}, []string{"--yes", "--limit", "1200"}, 0, 0, 1199, nil},
		"the others":     {&manyFleet{n: 2500}, []string{"--yes", "--after", manyID(1999)}, 0, 2000, 2499, nil},
		"some of them":   {&manyFleet{n: 2500}, []string{"--yes", "--after", manyID(9), "--limit", "2"}, 0, 10, 11, nil},
		"past those that cannot be": {
			&manyFleet{n: 2500, refuses: 2000},
			[]string{"--yes"},
			6, 2000, 2499,
			[]string{"Nothing was done to 1000 machines, up to m999: m0 is in maintenance", "up to m1999: m1000 is"},
		},
		"past those that were judged alone": {
			&manyFleet{n: 1500, refuses: 1000, unlisted: true}, []string{"--yes"}, 6, 1000, 1499, []string{"up to m999", "behind " + manyID(999)},
		},
		"none of them": {&manyFleet{n: 2500, refuses: 2500}, []string{"--yes"}, 5, 0, -1, []string{"up to m2499"}},
		"none behind":  {&manyFleet{n: 10}, []string{"--yes", "--after", manyID(9)}, 3, 0, -1, []string{"fits no machine behind " + manyID(9)}},
		"one behind":   {&manyFleet{n: 11}, []string{"--after", manyID(9)}, 0, 10, 10, nil},
		"one waits in vain": {
			&manyFleet{n: 2500, busy: 2},
			[]string{"--yes"},
			7, 0, 999,
			[]string{"no plan was made", "1000 machines were dealt with. For the others, give this command again with --after " + manyID(999)},
		},
		"one is lost": {
			&manyFleet{n: 2500, fails: 2},
			[]string{"--yes"},
			7, 0, 999,
			[]string{"ironherd plan confirm plan2 --server", "goes on with it", "behind those of that plan, give this command again with --after " + manyID(1999)},
		},
		"one of so many is lost": {
			&manyFleet{n: 2500, fails: 2}, []string{"--yes", "--limit", "2200"}, 7, 0, 999, []string{"again with --after " + manyID(1999) + " --limit 200."},
		},
		"one of so many cannot be made": {
			&manyFleet{n: 2500, old: true}, []string{"--yes", "--limit", "1200"}, 1, 0, 999, []string{"again with --after " + manyID(999) + " --limit 200."},
		},
		"so many, only planned": {
			&manyFleet{n: 2500}, []string{"--limit", "1200"}, 0, 0, -1, []string{"--after " + manyID(999) + " --limit 200; with --yes"},
		},
		"the last is lost": {&manyFleet{n: 1500, fails: 2}, []string{"--yes"}, 7, 0, 999, []string{"ironherd plan confirm plan2"}},
		"old":              {&manyFleet{n: 2500, old: true}, []string{"--yes"}, 1, 0, 999, []string{"too old to know --after", "again with --after " + manyID(999)}},
		"old, and refused": {&manyFleet{n: 2500, refuses: 1000, old: true}, []string{"--yes"}, 5, 0, -1, []string{"m0 is in maintenance"}},
		"only planned":     {&manyFleet{n: 2500}, nil, 0, 0, -1, []string{"this one is for the first 1000", "--after " + manyID(999) + "; with --yes", "plan confirm plan1"}},
		"only planned, and not listed": {
			&manyFleet{n: 2500, unlisted: true}, nil, 0, 0, -1, []string{"is not known: it cannot list", "with --after " + manyID(999), "plan confirm plan1"},
		},
		"planned, and refused": {
			&manyFleet{n: 2500, refuses: 1000}, nil, 5, 0, -1, []string{"m0 is in maintenance", "That is so of the first 1000 machines", "with --after " + manyID(999)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := c.fleet
			f.fakeFleet = &fakeFleet{}
			r := serveFake(t, f.fakeFleet, f).run(t, slices.Concat(quarantine, c.args)...)
			var want []string
			for i := c.first; i <= c.last; i++ {
				want = append(want, manyID(i))
			}
			if r.code != c.code || !slices.Equal(f.done, want) {
				t.Errorf("%d, and %d were done, want %d, and %d: %s", r.code, len(f.done), c.code, len(want), r.stderr)
			}
			if n := strings.Count(r.stdout, "MACHINE"); n != f.plans && f.plans != f.fails && !f.old {
				t.Errorf("%d plans are shown, and %d were made: %s", n, f.plans, r.stdout)
			}
			for _, says := range c.says {
				if !strings.Contains(r.stderr, says) {
					t.Errorf("it does not say %q: %s", says, r.stderr)
				}
			}
			if c.says == nil && strings.Contains(r.stderr, "--after") {
				t.Errorf("it says how to go on, but there is nothing: %s", r.stderr)
			}
		})
	}
}

// TestPlansOneAfterAnother: each is a document of its own.
func TestPlansOneAfterAnother(t *testing.T) {
	t.Parallel()
	for output, want := range map[string]string{"json": "\n}\n{\n", "yaml": "\n---\nid: plan2\n"} {
		f := &manyFleet{fakeFleet: &fakeFleet{}, n: 1001}
		r := serveFake(t, f.fakeFleet, f).run(t, "machine", "quarantine", "--provider", "metal", "--reason", "r", "--yes", "-o", output)
		if r.code != 0 || strings.Count(r.stdout, want) != 1 {
			t.Errorf("%s: %d, %s", output, r.code, r.stderr)
		}
	}
}
