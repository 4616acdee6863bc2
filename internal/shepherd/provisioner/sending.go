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
	every   time.Duration

	mu sync.Mutex
	// due has when the creations that are put off ask again.
	due map[*turn]time.Time
}

func newSending(limiter *shepherd.Limiter, every time.Duration) *sending {
	return &sending{limiter: limiter, every: every, due: make(map[*turn]time.Time)}
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
	now, ahead := t.limiter.Now(), 0
	for _, due := range t.due {
		if !again && !due.After(now) {
			ahead++ // it asks at any moment
		}
	}
	for wait = t.limiter.In(float64(1+ahead) - early); t.taken(now.Add(wait)); ahead++ {
		wait = t.limiter.In(float64(2+ahead) - early)
	}
	t.due[t] = now.Add(wait)
	return wait
}

// taken reports whether another creation is put off until about that instant.
func (s *sending) taken(at time.Time) bool {
	for _, due := range s.due {
		if at.Sub(due).Abs() < s.every/2 {
			return true
		}
	}
	return false
}

// end ends the turn, whether it was taken or not.
func (t *turn) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.due, t)
}
