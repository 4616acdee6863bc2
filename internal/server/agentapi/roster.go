package agentapi

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/subtle"
	"sync"
	"time"

	"golang.org/x/time/rate"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// agent is what is remembered of one admitted agent. Losing it costs a few statements and nothing
// else. The identity never changes; another one is another agent.
type agent struct {
	identity bmdb.AgentIdentity
	calls    *rate.Limiter
	reports  *rate.Limiter
	turn     chan struct{} // holds a token while a call of this agent is served

	// Held by whoever has the turn.
	spoken bool   // RecordSpoken has committed for boot
	boot   string // the boot ID that was committed
	ask    bool   // look for an install in the next answer
	// the newest that this process handed out; zero: none that the agent does not know of
	handed    attempt
	handedAt  time.Time
	running   attempt // what the agent is at, until busyUntil at the latest; zero: nothing
	busyUntil time.Time

	// Guarded by the roster's lock.
	verifiedAt time.Time // when the BMDB last said that this identity is the current one
	heardAt    time.Time
	wanted     bool // the sweep says that an install is wanted
	progress   *agentv1.InstallProgress
}

// attempt numbers one try at one install.
type attempt struct {
	generation fleet.InstallGeneration
	number     int
}

func (a attempt) before(b attempt) bool {
	return a.generation < b.generation || a.generation == b.generation && a.number < b.number
}

// take waits for the agent's turn.
func (a *agent) take(ctx context.Context) error {
	select {
	case a.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *agent) release() { <-a.turn }

// fits says whether a caller is this agent. It takes the same time for every key.
func fits(identity bmdb.AgentIdentity, key ed25519.PublicKey, generation fleet.TakeoverGeneration) bool {
	same := subtle.ConstantTimeCompare(identity.PublicKey, key) == 1
	return same && len(key) == ed25519.PublicKeySize && identity.TakeoverGeneration == generation
}

// roster is the agents that have spoken lately: never more than the BMDB has machines.
type roster struct {
	config Config

	mu     sync.Mutex
	agents map[fleet.MachineID]*agent
	dirty  map[fleet.MachineID]*agent // those with unflushed liveness
}

func newRoster(config Config) *roster {
	return &roster{config: config, agents: map[fleet.MachineID]*agent{}, dirty: map[fleet.MachineID]*agent{}}
}

// fresh returns the agent when its remembered identity fits the caller and is not too old to be
// used.
func (r *roster) fresh(id fleet.MachineID, key ed25519.PublicKey, generation fleet.TakeoverGeneration) *agent {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.agents[id]
	if a == nil || !fits(a.identity, key, generation) || time.Since(a.verifiedAt) >= r.config.Recheck {
		return nil
	}
	return a
}

// verified remembers what the BMDB has just said, and returns the agent of that identity.
func (r *roster) verified(identity bmdb.AgentIdentity) *agent {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.agents[identity.Machine]
	if a == nil || !same(a.identity, identity) {
		a = &agent{
			identity: identity, calls: newLimiter(r.config.CallRate), reports: newLimiter(r.config.ReportRate),
			turn: make(chan struct{}, 1), ask: true,
		}
		r.agents[identity.Machine] = a
		delete(r.dirty, identity.Machine)
	}
	a.verifiedAt = time.Now()
	return a
}

// supersede forgets what is remembered of the machine unless it is this identity. The zero identity
// forgets it in any case.
func (r *roster) supersede(id fleet.MachineID, current bmdb.AgentIdentity) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.agents[id]; a != nil && !same(a.identity, current) {
		delete(r.agents, id)
		delete(r.dirty, id)
	}
}

// heard notes a heartbeat. Without flush its liveness has just been committed otherwise.
func (r *roster) heard(a *agent, flush bool, progress *agentv1.InstallProgress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a.heardAt, a.progress = time.Now(), progress
	if r.agents[a.identity.Machine] != a {
		return // superseded while the call was served
	}
	if flush {
		r.dirty[a.identity.Machine] = a
	} else {
		delete(r.dirty, a.identity.Machine)
	}
}

// quiet returns how long nothing was heard of an agent that has spoken before.
func (r *roster) quiet(a *agent) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(a.heardAt)
}

// takeDirty returns the liveness that has not been flushed.
func (r *roster) takeDirty() map[fleet.MachineID]*agent {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.dirty
	r.dirty = make(map[fleet.MachineID]*agent, len(taken))
	return taken
}

// putBack is for liveness whose flush failed.
func (r *roster) putBack(taken map[fleet.MachineID]*agent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, a := range taken {
		if r.agents[id] == a {
			r.dirty[id] = a
		}
	}
}

func (r *roster) seen(taken map[fleet.MachineID]*agent) []bmdb.Seen {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := make([]bmdb.Seen, 0, len(taken))
	for id, a := range taken {
		seen = append(seen, bmdb.Seen{Machine: id, TakeoverGeneration: a.identity.TakeoverGeneration, Age: time.Since(a.heardAt)})
	}
	return seen
}

// want marks the agents whose machines want an install.
func (r *roster) want(ids []fleet.MachineID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		if a := r.agents[id]; a != nil {
			a.wanted = true
		}
	}
}

// wanted returns and clears the sweep's mark.
func (r *roster) takeWanted(a *agent) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	wanted := a.wanted
	a.wanted = false
	return wanted
}

// forget drops those who have not spoken for that long, and returns how many are left.
func (r *roster) forget(silent time.Duration) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, a := range r.agents {
		if time.Since(a.verifiedAt) > silent && time.Since(a.heardAt) > silent {
			delete(r.agents, id)
			delete(r.dirty, id)
		}
	}
	return len(r.agents)
}

func (r *roster) progress(id fleet.MachineID) *agentv1.InstallProgress {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.agents[id]; a != nil {
		return a.progress
	}
	return nil
}

func (r *roster) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.agents)
}

func same(a, b bmdb.AgentIdentity) bool {
	return a.Machine == b.Machine && a.TakeoverGeneration == b.TakeoverGeneration && bytes.Equal(a.PublicKey, b.PublicKey)
}
