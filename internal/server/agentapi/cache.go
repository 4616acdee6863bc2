package agentapi

import (
	"bytes"
	"crypto/ed25519"
	"crypto/subtle"
	"sync"
	"time"

	"golang.org/x/time/rate"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
)

// agent is what is remembered of one admitted agent. Losing it costs a few statements and nothing
// else. The identity never changes: an agent with another identity is another agent.
type agent struct {
	identity bmdb.AgentIdentity
	calls    *rate.Limiter
	reports  *rate.Limiter
	turn     server.Gate // one call of this agent is served at a time

	// Guarded by turn.
	spoken       bool   // RecordSpoken has committed for boot
	boot         string // the boot ID that was committed
	checkInstall bool   // the next answer asks the BMDB for an install
	checkLeave   bool   // and whether the agent is to leave
	told         string // why it was told to leave last
	// handedOut is the newest attempt that this process handed out; zero: none that the agent does not
	// know of.
	handedOut   attempt
	handedOutAt time.Time
	// running is the attempt that the agent works at, until busyUntil at the latest; zero: none.
	running   attempt
	busyUntil time.Time
	// needed is the attempt of which the BMDB has said last that somebody wants it; zero: of none.
	needed attempt

	// Guarded by the cache's lock.
	verifiedAt time.Time // when the BMDB last said that this identity is the current one
	heardAt    time.Time
	hints      [3]bool // what its next call is to look at, by hint
	progress   *agentv1.InstallProgress
}

// hint is what is found of a machine, so that its agent's next call sees to it.
type hint int

const (
	hintInstall hint = iota // the machine wants an install
	hintLeave               // the agent may be wanted to leave
	hintLost                // the BMDB may have lost what it had acknowledged
)

// attempt names one attempt at one install.
type attempt struct {
	generation fleet.InstallGeneration
	number     int
}

func (a attempt) before(b attempt) bool {
	return a.generation < b.generation || a.generation == b.generation && a.number < b.number
}

// fits says whether a caller has the key of this agent. It takes the same time for every key.
func fits(identity bmdb.AgentIdentity, key ed25519.PublicKey) bool {
	same := subtle.ConstantTimeCompare(identity.PublicKey, key) == 1
	return same && len(key) == ed25519.PublicKeySize
}

// agentCache remembers the agents that have spoken lately: never more than the BMDB has machines.
type agentCache struct {
	config Config

	mu        sync.Mutex
	evidence  string // why the BMDB looks restored; "": it does not
	agents    map[fleet.MachineID]*agent
	unflushed map[fleet.MachineID]*agent // those whose liveness has not been written
}

func newAgentCache(config Config) *agentCache {
	return &agentCache{config: config, agents: map[fleet.MachineID]*agent{}, unflushed: map[fleet.MachineID]*agent{}}
}

// lookup returns the agent whose remembered key is the caller's, whatever the takeover generation,
// and how long ago the BMDB has confirmed it; nil where none has that key.
func (c *agentCache) lookup(id fleet.MachineID, key ed25519.PublicKey) (*agent, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.agents[id]
	if a == nil || !fits(a.identity, key) {
		return nil, 0
	}
	return a, time.Since(a.verifiedAt)
}

// remember returns the agent of an identity that the BMDB has just confirmed.
func (c *agentCache) remember(identity bmdb.AgentIdentity) *agent {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.agents[identity.Machine]
	if a == nil || !same(a.identity, identity) {
		a = &agent{
			identity: identity, calls: newLimiter(c.config.CallRate), reports: newLimiter(c.config.ReportRate),
			turn: make(server.Gate, 1), checkInstall: true, checkLeave: true,
		}
		a.hints[hintLost] = c.evidence != "" // another process may have acknowledged it
		c.agents[identity.Machine] = a
		delete(c.unflushed, identity.Machine)
	}
	a.verifiedAt = time.Now()
	return a
}

// dropUnless forgets the agent of the machine unless it has the current identity. The zero identity
// makes it forget any.
func (c *agentCache) dropUnless(id fleet.MachineID, current bmdb.AgentIdentity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.agents[id]; a != nil && !same(a.identity, current) {
		delete(c.agents, id)
		delete(c.unflushed, id)
	}
}

// heard remembers a heartbeat whose liveness is still to be written.
func (c *agentCache) heard(a *agent, progress *agentv1.InstallProgress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a.heardAt, a.progress = time.Now(), progress
	if c.agents[a.identity.Machine] == a { // no other agent took its place while the call was served
		c.unflushed[a.identity.Machine] = a
	}
}

// heardAndCommitted remembers a heartbeat whose liveness has just been committed.
func (c *agentCache) heardAndCommitted(a *agent, progress *agentv1.InstallProgress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a.heardAt, a.progress = time.Now(), progress
	if c.agents[a.identity.Machine] == a {
		delete(c.unflushed, a.identity.Machine)
	}
}

// silence returns how long ago the agent was last heard.
func (c *agentCache) silence(a *agent) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(a.heardAt)
}

// takeUnflushed returns the agents whose liveness has not been written, and counts them as written.
func (c *agentCache) takeUnflushed() map[fleet.MachineID]*agent {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.unflushed
	c.unflushed = make(map[fleet.MachineID]*agent, len(taken))
	return taken
}

// restoreUnflushed takes back agents whose liveness could not be written.
func (c *agentCache) restoreUnflushed(taken map[fleet.MachineID]*agent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, a := range taken {
		if c.agents[id] == a {
			c.unflushed[id] = a
		}
	}
}

// seen returns the liveness of agents as ages, because the BMDB has a clock of its own.
func (c *agentCache) seen(taken map[fleet.MachineID]*agent) []bmdb.Seen {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := make([]bmdb.Seen, 0, len(taken))
	for id, a := range taken {
		seen = append(seen, bmdb.Seen{Machine: id, TakeoverGeneration: a.identity.TakeoverGeneration, Age: time.Since(a.heardAt)})
	}
	return seen
}

// mark gives the agents of machines a hint.
func (c *agentCache) mark(h hint, ids []fleet.MachineID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		if a := c.agents[id]; a != nil {
			a.hints[h] = true
		}
	}
}

// noteRestored takes why the BMDB looks restored; "" where it does not. When that is news, it gives
// all agents the hint that what was acknowledged may be lost, and returns true.
func (c *agentCache) noteRestored(evidence string) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	news = evidence != "" && evidence != c.evidence
	c.evidence = evidence
	for _, a := range c.agents {
		a.hints[hintLost] = a.hints[hintLost] || news
	}
	return news
}

// looksRestored reports whether the BMDB looks restored.
func (c *agentCache) looksRestored() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.evidence != ""
}

// take returns and clears a hint.
func (c *agentCache) take(h hint, a *agent) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	given := a.hints[h]
	a.hints[h] = false
	return given
}

// dropSilent forgets the agents that have not spoken for so long. It returns how many are left, and
// how many of those install and have spoken lately.
func (c *agentCache) dropSilent(silent, lately time.Duration) (left, installing int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, a := range c.agents {
		if time.Since(a.verifiedAt) > silent && time.Since(a.heardAt) > silent {
			delete(c.agents, id)
			delete(c.unflushed, id)
		} else if a.freshProgress(lately) != nil {
			installing++
		}
	}
	return len(c.agents), installing
}

// progress returns how far the install of the machine is; nil where its agent has not spoken
// lately.
func (c *agentCache) progress(id fleet.MachineID, lately time.Duration) *agentv1.InstallProgress {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.agents[id]; a != nil {
		return a.freshProgress(lately)
	}
	return nil
}

// freshProgress is how far the agent's install is; nil where it has not spoken lately. One that
// does not speak here any more may speak to another process. The caller holds the cache's lock.
func (a *agent) freshProgress(lately time.Duration) *agentv1.InstallProgress {
	if time.Since(a.heardAt) > lately {
		return nil
	}
	return a.progress
}

func (c *agentCache) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.agents)
}

func same(a, b bmdb.AgentIdentity) bool {
	return a.Machine == b.Machine && a.TakeoverGeneration == b.TakeoverGeneration && bytes.Equal(a.PublicKey, b.PublicKey)
}
