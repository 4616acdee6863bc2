package rehearsal

import (
	"slices"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/provider"
)

// paced is a setup whose only provider has these limits.
func paced(limits provider.Limits, pageSize int) Setup {
	setup := Brisk()
	setup.Providers = slices.Clone(setup.Providers)
	setup.Providers[0].Limits, setup.Providers[0].PageSize = limits, pageSize
	return setup
}

// total is how many calls there were of one provider.
func (c Calls) total() (n int) {
	for _, of := range c.Total {
		n += of
	}
	return n
}

// TestPaceBoundsTheBringUp: how long it takes until a fleet is there follows from the spacing of
// calls, which all control planes keep together, and the providers of one account.
func TestPaceBoundsTheBringUp(t *testing.T) {
	t.Parallel()
	if raceDetector {
		return // TestScenarios runs one
	}
	const machines, spacing = 12, 20 * time.Second
	plan := Plan{Seed: 1, Machines: machines, Controllers: 2, Length: time.Minute, Settle: 4 * time.Hour}
	run := func(setup Setup) Report {
		t.Helper()
		for i := range setup.Providers {
			setup.Providers[i].Provisioner.CreateRate.Every = time.Second
		}
		r, err := Run(t.Context(), plan, setup, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if r.Failed() || r.Created != machines*len(setup.Providers) {
			t.Errorf("%v, %q, %d created", r.Violations, r.Left, r.Created)
		}
		return r
	}
	free, slow := run(Brisk()), run(paced(provider.Limits{Spacing: spacing, InFlight: 2}, 0))
	two := paced(provider.Limits{Spacing: spacing, InFlight: 2}, 0)
	two.Providers[0].Account = "one"
	other := two.Providers[0]
	other.Name = "other"
	two.Providers = append(two.Providers, other)
	both := run(two)
	// Each machine takes two calls: whether it is there already, and the one that creates it.
	const least = 2 * machines * spacing
	if free.Settled >= least || slow.Settled < least || slow.Settled > 3*least || both.Settled < 2*least {
		t.Errorf("without a limit settled after %s, with one call each %s after %s, with two providers after %s", free.Settled, spacing, slow.Settled, both.Settled)
	}
	for _, r := range []Report{slow, both} {
		calls := 0
		for _, c := range r.Calls {
			calls += c.total()
			if c.Peak > 1 {
				t.Errorf("%d calls in one second", c.Peak)
			}
		}
		if most := int(r.Elapsed/spacing) + 1; calls > most {
			t.Errorf("%d calls in %s, and %d may be", calls, r.Elapsed, most)
		}
	}
	if free.Calls[0].Peak < 2 {
		t.Error("without a limit there are no two calls in a second")
	}
}

// TestCallsInFlight: a process has no more of them than it may.
func TestCallsInFlight(t *testing.T) {
	t.Parallel()
	if raceDetector {
		return // TestScenarios runs one
	}
	plan := Plan{
		Seed: 1, Machines: 12, Controllers: 1, Length: 20 * time.Minute, Settle: 2 * time.Hour, Lead: true,
		Events: []Event{{What: LostReplies, At: time.Minute, For: 18 * time.Minute, Share: 100}, {What: TenthFails, At: 2 * time.Minute}},
	}
	// Each call takes 15 s, because there is no answer.
	calls := make(map[int]int)
	for _, most := range []int{0, 1} {
		r, err := Run(t.Context(), plan, paced(provider.Limits{InFlight: most}, 0), Options{})
		if err != nil || r.Failed() {
			t.Fatal(err, r.Violations, r.Left)
		}
		calls[most] = r.Calls[0].Peak
	}
	if calls[1] > 1 || calls[0] < 2 {
		t.Errorf("at most %d calls in one second, and %d without a limit", calls[1], calls[0])
	}
}

// TestAPauseHoldsAllCalls: a provider that refuses calls, and says for how long, gets none
// meanwhile, whatever they are about.
func TestAPauseHoldsAllCalls(t *testing.T) {
	t.Parallel()
	if raceDetector {
		return // TestScenarios runs one
	}
	const lasts = time.Hour
	plan := Plan{
		Seed: 1, Machines: 40, Controllers: 1, Length: lasts + 2*time.Minute, Settle: 4 * time.Hour, Lead: true,
		Events: []Event{{What: TenthFails, At: time.Minute}, {What: Throttled, At: time.Minute, For: lasts, Share: 100}},
	}
	r, err := Run(t.Context(), plan, paced(provider.Limits{InFlight: 1}, 0), Options{})
	if err != nil || r.Failed() {
		t.Fatal(err, r.Violations, r.Left)
	}
	if n, most := r.Calls[0].total(), int(lasts/errThrottled.RetryAfter)+40; n > most {
		t.Errorf("%d calls in %s, and %d may be: %v", n, r.Elapsed, most, r.Calls)
	}
}

// TestPagesAreCalls: a list takes a call for each page, of the capacity and of the machines.
func TestPagesAreCalls(t *testing.T) {
	t.Parallel()
	if raceDetector {
		return // TestScenarios runs one
	}
	plan := Plan{Seed: 1, Machines: 12, Controllers: 1, Length: 30 * time.Minute, Lead: true}
	lists := make(map[int]int)
	for _, size := range []int{0, 5} {
		r, err := Run(t.Context(), plan, paced(provider.Limits{}, size), Options{})
		if err != nil || r.Failed() {
			t.Fatal(err, r.Violations, r.Left)
		}
		lists[size] = r.Calls[0].Total["list"]
	}
	// Of 12 rows each, in three pages, a pass reads both, and the updater the machines.
	if lists[5] < 4*lists[0] || lists[5] > 6*lists[0] {
		t.Errorf("%d lists in pages, %d in one call each", lists[5], lists[0])
	}
}
