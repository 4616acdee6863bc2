package lifecycle_test

import (
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// TestTimeAloneChangesNoReasonOfCreating: nobody judges a machine again while it waits for its turn
// to be created, and lists show the reason of the last time.
func TestTimeAloneChangesNoReasonOfCreating(t *testing.T) {
	t.Parallel()
	env := environment()
	want := "waiting to be created: planned at metal for about " + fleet.Instant(at(2))
	for _, now := range []float64{0, 1, 2, 3, 100} {
		if plan := lifecycle.Decide(record(intent(2, 0, 0)), env, at(now)); plan.State != fleet.StateCreating || plan.Reason != want {
			t.Errorf("minute %g: %s: %s", now, plan.State, plan.Reason)
		}
	}
	pausedProvider(&env)
	want = "paused by ada since 2026-11-20 21:00:00 UTC: the bill; `ironherd provider resume metal --reason WHY` ends it"
	if plan := lifecycle.Decide(record(intent(2, 0, 0)), env, at(1)); plan.Reason != want {
		t.Errorf("paused: %s", plan.Reason)
	}
}
