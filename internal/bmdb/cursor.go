package bmdb

import (
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/agenda"
	"github.com/ironherd/ironherd/internal/fleet"
)

// cursors is how far the janitor has looked at what is due and stays so, and under which policy it
// has judged the providers.
type cursors struct {
	mu    sync.Mutex
	at    map[fleet.Process]cursor
	began map[fleet.Process]time.Duration
	// policy is the number of that policy. Until it is the newest, a check leaves providers out.
	policy int64
}

// cursor is a position in the agenda of one process.
type cursor struct {
	dueAt   int64
	subject string
}

func newCursors() *cursors {
	return &cursors{at: make(map[fleet.Process]cursor), began: make(map[fleet.Process]time.Duration)}
}

// cursor returns where to go on; once a minute that is the beginning.
func (c *cursors) cursor(k fleet.Process, elapsed time.Duration) cursor {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.at[k]
	if !ok || elapsed-c.began[k] >= agenda.ScanEvery {
		at = cursor{dueAt: floorMicros(time.Time{})}
		c.at[k], c.began[k] = at, elapsed
	}
	return at
}

func (c *cursors) move(k fleet.Process, to cursor) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at[k] = to
}

// seen says whether the providers have been judged under the policy of that number.
func (c *cursors) seen(policy int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.policy >= policy
}

// markSeen notes that they have been.
func (c *cursors) markSeen(policy int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.policy = max(c.policy, policy)
}
