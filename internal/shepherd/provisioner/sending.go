package provisioner

import (
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/shepherd"
)

// sending keeps create_rate where the requests are sent (I10). Creations begin at that rate, too,
// but then each waits for its turn to call the provider. Where that takes long, several could send
// their requests one right after the other.
type sending struct {
	limiter *shepherd.Limiter

	mu sync.Mutex
	// off counts the creations that are put off. They come before those that are not yet.
	off int
}

// turn is the turn of one creation to send its request. Its holder ends it.
func (s *sending) turn() *turn { return &turn{sending: s} }

type turn struct {
	*sending
	isOff bool
}

// take takes the turn, or returns for how long the creation is put off. Each is put off until
// another instant: none costs the provider's pace a call that is not made.
func (t *turn) take() (wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	among := 1
	if !t.isOff {
		among += t.off
	}
	t.back()
	if wait = t.limiter.Take(among); wait > 0 {
		t.isOff = true
		t.off++
	}
	return wait
}

// end ends the turn, whether it was taken or not.
func (t *turn) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.back()
}

func (t *turn) back() {
	if t.isOff {
		t.isOff = false
		t.off--
	}
}
