package agentapi

import (
	"math/rand/v2"
	"sync"
	"time"
)

// spread is the part of the interval by which an answer may shorten it, so that agents that started
// together drift apart.
const spread = 0.2

// pace computes the heartbeat interval that agents are asked for. It grows with their number, so
// that all together stay below so many heartbeats a second.
type pace struct {
	perSecond int

	mu       sync.Mutex
	policy   time.Duration
	interval time.Duration
	// progress is the least time from one heartbeat to the next of an agent that installs.
	progress time.Duration
	// longer is an interval that was asked for before, and until is when the last agent may stop
	// following it.
	longer time.Duration
	until  time.Time
}

func newPace(perSecond int) *pace { return &pace{perSecond: perSecond} }

// set takes the interval that the policy asks for, and the number of agents that are to share the
// heartbeats of a second. Those of them that install, and have progress to tell, share what the
// others leave of it, which is at least what they would have without progress.
func (p *pace) set(policy time.Duration, agents, installing int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	interval := max(policy, time.Duration(agents)*time.Second/time.Duration(p.perSecond))
	if p.interval > interval && p.interval >= p.longer {
		p.longer, p.until = p.interval, time.Now().Add(p.interval)
	}
	p.policy, p.interval, p.progress = policy, interval, 0
	if left := float64(p.perSecond) - float64(agents-installing)/interval.Seconds(); installing > 0 {
		p.progress = time.Duration(float64(installing) / left * float64(time.Second))
	}
}

// next returns the interval for one answer, never longer than what is promised, and that for
// heartbeats of progress.
func (p *pace) next() (interval, progress time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(float64(p.interval) * (1 - spread*rand.Float64())), p.progress
}

// promised returns the longest interval that any agent may be following now.
func (p *pace) promised() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Now().Before(p.until) {
		return max(p.interval, p.longer)
	}
	p.longer = 0
	return p.interval
}
