package provisioner

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/trust"
)

// TestSending: a request that is a little early is sent, and one that is too early is put off until
// it is not. Two that are put off together come back one after the other, again and again.
func TestSending(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSending(shepherd.EmptyLimiter(fleet.Rate{Every: 10 * time.Second, Burst: 1}, trust.NewClock()), 10*time.Second)
		take := func(at *turn, want time.Duration) {
			t.Helper()
			if got := at.take().Round(time.Millisecond); got != want {
				t.Errorf("put off by %s, want %s", got, want)
			}
		}
		time.Sleep(6 * time.Second)
		take(s.turn(), 0) // 0.6 of a token is enough
		time.Sleep(8 * time.Second)
		take(s.turn(), 1*time.Second) // 0.4 is not
		s = newSending(shepherd.EmptyLimiter(fleet.Rate{Every: 10 * time.Second, Burst: 1}, trust.NewClock()), 10*time.Second)
		first, second := s.turn(), s.turn()
		take(first, 5*time.Second)
		take(second, 15*time.Second)
		time.Sleep(time.Minute) // both waited longer, as for a pause of the provider
		take(s.turn(), 15*time.Second)
		take(first, 0)
		take(second, 5*time.Second) // before the third
		time.Sleep(5 * time.Second)
		take(second, 0)
		second.end()
		first.end()
		if len(s.due) != 1 {
			t.Errorf("%d are put off", len(s.due))
		}
	})
}
