package rehearsal

import (
	"cmp"
	"flag"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

var (
	seeds  = flag.Uint64("seeds", 0, "how many seeds TestSeeds runs; 0: 1,000 outside of the race detector, 10 under it")
	from   = flag.Uint64("from", 0, "the first seed")
	replay = flag.String("replay", "", "the plan that TestReplay runs")
	setups = flag.String("setup", "", "the setup that TestReplay runs it with (see setupOf)")
	tries  = flag.Int("tries", 150, "how many smaller plans are tried of one that fails")
	shown  = flag.Int("lines", 60, "how many lines of the trace of a plan that fails are shown")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSeeds runs a plan of each seed: every fault mixed, on a small fleet, and now and then on a
// large one. It demands I1 to I11 of each (see watch.go), and that all is well in the end. A plan
// that fails is made smaller, and shown with what runs it again.
func TestSeeds(t *testing.T) {
	t.Parallel()
	runSeeds(t, cmp.Or(*seeds, 1000), "")
}

// TestSeedsOfProbes is TestSeeds where installed systems are seen by probes, and watched.
func TestSeedsOfProbes(t *testing.T) {
	t.Parallel()
	runSeeds(t, cmp.Or(*seeds, 100), "probes")
}

// TestSeedsOfUnits is TestSeeds where installed systems are watched by the calls of their units.
func TestSeedsOfUnits(t *testing.T) {
	t.Parallel()
	runSeeds(t, cmp.Or(*seeds, 100), "units")
}

// TestSeedsOfPace is TestSeeds where calls are paced, as those of a provider are by default.
func TestSeedsOfPace(t *testing.T) {
	t.Parallel()
	runSeeds(t, cmp.Or(*seeds, 100), "paced")
}

// setupOf returns a setup by its name; "" is that of TestSeeds.
func setupOf(name string) (Setup, error) {
	setup := Brisk()
	switch name {
	case "":
	case "probes":
		setup.SeenUp = fleet.SeenUp{By: fleet.SeenBySSH, Watch: true}
	case "units":
		setup.SeenUp = fleet.SeenUp{Watch: true}
	case "paced":
		setup = paced(provider.Limits{Spacing: 2 * time.Second, InFlight: 1}, 4)
	case "hasty": // no install ends in time
		setup.Policy.InstallTimeout = time.Minute
	default:
		return Setup{}, fmt.Errorf("no setup is named %q", name)
	}
	return setup, nil
}

func runSeeds(t *testing.T, count uint64, name string) {
	t.Helper()
	setup, err := setupOf(name)
	if err != nil {
		t.Fatal(err)
	}
	if raceDetector && *seeds == 0 {
		count = 10 // one goroutine runs at a time: there is little to find
	}
	var found atomic.Int32
	var group errgroup.Group
	group.SetLimit(2)
	for seed := *from; seed < *from+count; seed++ {
		group.Go(func() error {
			if found.Load() >= 3 {
				return nil
			}
			r, err := Run(t.Context(), Draw(seed), setup, Options{})
			if err != nil {
				return fmt.Errorf("seed %d: %w", seed, err)
			}
			if r.Failed() {
				found.Add(1)
				t.Errorf("seed %d: %s", seed, complaint(t, r, setup, name))
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// complaint makes a plan that fails smaller, and tells it, with the command that runs it again.
func complaint(t *testing.T, r Report, setup Setup, name string) string {
	t.Helper()
	first := r.Violations[0]
	small := Shrink(r.Plan, *tries, func(p Plan) bool {
		again, err := Run(t.Context(), p, setup, Options{})
		return err == nil && len(again.Violations) > 0 && again.Violations[0].Invariant == first.Invariant
	})
	again, err := Run(t.Context(), small, setup, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s\nmade smaller:\n  %s\n  go test ./internal/rehearsal -run 'TestReplay$' -setup='%s' -replay='%s'\n%s", first,
		strings.Join(violations(again), "\n  "), name, small, strings.Join(again.Trace[max(0, len(again.Trace)-*shown):], "\n"))
}

func violations(r Report) (all []string) {
	for _, v := range r.Violations {
		all = append(all, v.String())
	}
	return all
}

// replayed runs a plan with the setup of that name.
func replayed(t *testing.T, plan, name string) Report {
	t.Helper()
	p, err := ParsePlan(plan)
	if err != nil {
		t.Fatal(err)
	}
	setup, err := setupOf(name)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), p, setup, Options{KeepTrace: true})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestWhatIsPrintedFailsAgain: a plan that fails only with one setup fails by the command that is
// printed of it.
func TestWhatIsPrintedFailsAgain(t *testing.T) {
	t.Parallel()
	const name = "hasty"
	setup, err := setupOf(name)
	if err != nil {
		t.Fatal(err)
	}
	plan := Plan{Seed: 1, Machines: 2, Controllers: 2, Length: 2 * time.Minute, Settle: 30 * time.Minute, Install: true}
	r, err := Run(t.Context(), plan, setup, Options{})
	if err != nil || len(r.Violations) == 0 {
		t.Fatalf("%v, %+v", err, r.Violations)
	}
	printed := regexp.MustCompile(`-run 'TestReplay\$' -setup='(.*)' -replay='(.*)'`).FindStringSubmatch(complaint(t, r, setup, name))
	if printed == nil || len(replayed(t, printed[2], printed[1]).Violations) == 0 || len(replayed(t, printed[2], "").Violations) > 0 {
		t.Errorf("printed %q", printed)
	}
}

// TestReplay runs the plan that is given, which has failed before.
func TestReplay(t *testing.T) {
	t.Parallel()
	if *replay == "" {
		*replay = Draw(0).String()
	}
	r := replayed(t, *replay, *setups)
	for _, v := range violations(r) {
		t.Errorf("%s", v)
	}
	if r.Failed() {
		t.Log(strings.Join(r.Trace[max(0, len(r.Trace)-*shown):], "\n"))
	}
}

// TestTheSameSeedGivesTheSameTrace is I12.
func TestTheSameSeedGivesTheSameTrace(t *testing.T) {
	t.Parallel()
	plans := []Plan{Draw(3), Draw(17), Draw(49)}
	if raceDetector {
		plans = plans[:1]
	}
	for i, plan := range plans {
		t.Run(strconv.FormatUint(plan.Seed, 10), func(t *testing.T) {
			t.Parallel()
			setup, err := setupOf([]string{"", "paced"}[i%2])
			if err != nil {
				t.Fatal(err)
			}
			first, err := Run(t.Context(), plan, setup, Options{KeepTrace: true})
			if err != nil {
				t.Fatal(err)
			}
			second, err := Run(t.Context(), plan, setup, Options{KeepTrace: true})
			if err != nil {
				t.Fatal(err)
			}
			if first.Digest != second.Digest {
				t.Errorf("the traces differ: %s", difference(first.Trace, second.Trace))
			}
			if len(first.Trace) < 500 {
				t.Errorf("little happened: %d lines", len(first.Trace))
			}
		})
	}
}

func difference(a, b []string) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d:\n%s\n%s", i+1, a[i], b[i])
		}
	}
	return fmt.Sprintf("%d and %d lines", len(a), len(b))
}

// TestShrink: a plan that fails because of two events is made one of these two.
func TestShrink(t *testing.T) {
	t.Parallel()
	plan := Draw(5)
	plan.Machines, plan.Controllers = 40, 3
	for i := range 12 {
		plan.Events = append(plan.Events, Event{What: HostHangs, At: plan.Length / 2, Target: i})
	}
	asked := 0
	small := Shrink(plan, 200, func(p Plan) bool {
		asked++
		has := 0
		for _, e := range p.Events {
			if e.What == HostHangs && (e.Target == 3 || e.Target == 9) {
				has++
			}
		}
		return has >= 2 && p.Machines >= 5
	})
	if len(small.Events) != 2 || small.Machines != 5 || small.Controllers != 1 || asked > 200 {
		t.Errorf("after %d tries: %s", asked, small)
	}
	again, err := ParsePlan(small.String())
	if err != nil || again.String() != small.String() {
		t.Errorf("read again: %s, %v", again, err)
	}
	for _, bad := range []string{"", "{", `{"machines":0}`, `{"machines":1,"controllers":1,"length":60000000000,"events":[{"what":"crash","at":-1}]}`} {
		if _, err := ParsePlan(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
