package bmdb

import (
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/agenda"
	"github.com/ironherd/ironherd/internal/fleet"
)

// cursors is how far the janitor has looked at what is due and stays so.
type cursors struct {
	mu sync.Mutex
	at map[fleet.Process]cursor
}

// cursor is a position in the agenda of one process.
type cursor struct {
	dueAt   int64
	subject string
	// began is the reading of the clock when the janitor last went to the beginning.
	began time.Duration
}

// cursor returns where to go on; once a minute that is the beginning.
func (c *cursors) cursor(k fleet.Process, elapsed time.Duration) cursor {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.at[k]
	if !ok || elapsed-at.began >= agenda.ScanEvery {
		at = cursor{dueAt: floorMicros(time.Time{}), began: elapsed}
		c.at[k] = at
	}
	return at
}

// move moves the cursor of a process to an entry.
func (c *cursors) move(k fleet.Process, dueAt int64, subject string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at[k] = cursor{dueAt, subject, c.at[k].began}
}
