package agent

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/agent/takeover"
)

// contact watches how long the control plane has not admitted the agent.
//
// An agent that was never admitted gives up after the limit, and so does one that is refused all
// the time, because then nobody would ever hear of the machine again. One that was admitted and
// does not reach the control plane any more has a day: the control plane may be down, and a restart
// would not mend that. But its own address may be another machine's by then, or the control plane's
// a new one, and then only the old system can be reached.
type contact struct {
	mu    sync.Mutex
	limit time.Duration
	// since is the start, or since when the agent is refused; zero: it is not.
	since time.Time
	// admitted is when the agent was last admitted; zero: never.
	admitted time.Time
	last     error
}

func (c *contact) begin(limit time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit, c.since = limit, time.Now()
}

// failed keeps what went wrong.
func (c *contact) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = err
}

// heard is called after each heartbeat: with nil when the agent was admitted, and whether it was
// refused.
func (c *contact) heard(err error, refused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = err
	switch {
	case err == nil:
		c.admitted, c.since = time.Now(), time.Time{}
	case c.admitted.IsZero():
	case !refused:
		c.since = time.Time{}
	case c.since.IsZero():
		c.since = time.Now()
	}
}

// wasAdmitted says whether the agent was ever admitted.
func (c *contact) wasAdmitted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.admitted.IsZero()
}

// lost returns why there is no hope any more, "" while there is.
func (c *contact) lost() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.limit == 0 {
		return ""
	}
	last := c.last
	if last == nil {
		last = errors.New("no heartbeat was answered")
	}
	silence := max(takeover.SilenceLimit, c.limit)
	over := !c.since.IsZero() && time.Since(c.since) >= c.limit
	switch {
	case over && c.admitted.IsZero():
		return fmt.Sprintf("the agent in memory had no contact with the control plane within %s: %v", c.limit, last)
	case over:
		return fmt.Sprintf("the control plane has refused the agent in memory for %s: %v", c.limit, last)
	case !c.admitted.IsZero() && time.Since(c.admitted) >= silence:
		return fmt.Sprintf("the control plane has not admitted the agent in memory for %s: %v", silence, last)
	}
	return ""
}
