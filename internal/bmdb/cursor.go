package bmdb

import (
	"sync"
	"time"
)

// cursors is how far the janitor has looked at what is due and stays so. It is only about speed.
type cursors struct {
	mu     sync.Mutex
	at     map[headKey]cursor
	began  map[headKey]time.Duration
	policy int64
}

// cursor is a position in the agenda of one process and provider.
type cursor struct {
	dueAt   int64
	subject string
}

func newCursors() *cursors {
	return &cursors{at: make(map[headKey]cursor), began: make(map[headKey]time.Duration)}
}

// cursor returns where to go on; once a minute that is the beginning.
func (c *cursors) cursor(k headKey, elapsed time.Duration) cursor {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.at[k]
	if !ok || elapsed-c.began[k] >= fullScanEvery {
		at = cursor{dueAt: floorMicros(time.Time{})}
		c.at[k], c.began[k] = at, elapsed
	}
	return at
}

func (c *cursors) move(k headKey, to cursor) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at[k] = to
}

// policyChanged says whether the providers have yet to be judged under the policy of that number.
func (c *cursors) policyChanged(number int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.policy < number
}

func (c *cursors) policyDone(number int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.policy = max(c.policy, number)
}
