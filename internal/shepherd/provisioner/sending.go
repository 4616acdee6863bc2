package provisioner

import (
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/shepherd"
)

// early is by how much of an interval of create_rate a request may be sent too early. Creations
// begin at the rate, and then take now more, now less time until they may send: to put those off
// that were a little faster than the one before would cost a turn at the provider each.
const early = 0.5

// sending keeps create_rate where the requests are sent (I10). Creations begin at that rate, too,
// but then each waits for its turn to call the provider. Where that takes long, several could send
// their requests one right after the other. What a request takes from here on, as to record that it
// is sent, is not seen any more.
type sending struct {
	limiter *shepherd.Limiter

	mu sync.Mutex
	// due has when the creations that are put off ask again.
	due map[*turn]time.Time
}

func newSending(limiter *shepherd.Limiter) *sending {
	return &sending{limiter: limiter, due: make(map[*turn]time.Time)}
}

// turn is the turn of one creation to send its request. Its holder ends it.
func (s *sending) turn() *turn { return &turn{sending: s} }

type turn struct{ *sending }

// take takes the turn, or returns for how long the creation is put off. Each is put off until
// another instant, and those that were come before those that were not.
func (t *turn) take() (wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, again := t.due[t]
	delete(t.due, t)
	before := len(t.due)
	if again {
		before = 0
	}
	if t.limiter.Take(float64(1+before)-early) == 0 {
		return 0
	}
	now := t.limiter.Now()
	if again { // the others keep their instants
		for _, due := range t.due {
			if due.After(now) {
				before++
			}
		}
	}
	wait = t.limiter.In(float64(1+before) - early)
	t.due[t] = now.Add(wait)
	return wait
}

// end ends the turn, whether it was taken or not.
func (t *turn) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.due, t)
}
