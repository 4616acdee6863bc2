package agentapi

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestWhoPausesIsForgiven: calls that are throttled count until the caller has paused. That one of
// them is allowed in between is no pause.
func TestWhoPausesIsForgiven(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pause time.Duration // after each 100 calls
		cut   bool
	}{
		"on and on":    {cut: true},
		"with a pause": {pause: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				caller := &connection{limiter: newLimiter(fleet.Rate{Every: 250 * time.Millisecond, Burst: 2})}
				allowed := 0
				for call := range 1000 {
					if !caller.throttled() {
						allowed++
					}
					time.Sleep(50 * time.Millisecond)
					if call%100 == 99 {
						time.Sleep(c.pause)
					}
				}
				if cut := caller.unheeded.Load() > mostUnheeded; cut != c.cut || allowed < 200 {
					t.Errorf("it is cut off: %v, after %d calls that were allowed", cut, allowed)
				}
			})
		})
	}
}
