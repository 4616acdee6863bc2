package gate_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/reconciler/gate"
	"github.com/ironherd/ironherd/reconciler/release"
)

// cluster is a control plane in numbers: three nodes that are upgraded, downgraded, crash, are
// removed and come back in any order, with watches that lag, leaders that are deposed at any moment
// and whose last requests land late, and a status that is garbled now and then. All decisions are
// the gate's; what is written is conditional as the package says.
type cluster struct {
	random *rand.Rand
	needs  [count + 1]int // of each release: the oldest reconciler that its API server works with
	admits [count + 1]int // of each release: the oldest API server that its base resources admit

	revision int64
	nodes    [3]*member
	history  []records // of the records, by revision
	status   stored
	statusAt int64

	leader int // -1: none
	terms  int
	// resources has bit r when requests of release r's reconciler may be part of what the base
	// resources are; late when requests of a deposed leader may still land.
	resources, late int
	trace           []string
}

// records are the nodes' records as of one revision: 0 none.
type records struct {
	revision int64
	release  [3]int
	changed  [3]int64
}

// member is a node.
type member struct {
	installed int // release of the reconciler
	serving   int // release of the API server that serves; 0 none
	up        bool
	seen      int // index into history: how far its watch has come

	// Of a leader.
	phase   phase
	plan    gate.Plan
	planned int64 // revision of the status that the plan is for
	relied  int64 // revision of the nodes that the plan is for
}

type phase int

const (
	deciding phase = iota
	announcing
	passing
	finishing
	steady
)

func newCluster(seed uint64) *cluster {
	c := &cluster{random: rand.New(rand.NewPCG(seed, 4)), leader: -1, history: []records{{}}}
	for r := 1; r <= count; r++ {
		c.needs[r], c.admits[r] = 1+c.random.IntN(r), 1+c.random.IntN(r)
	}
	for i := range c.nodes {
		c.nodes[i] = &member{installed: 1 + c.random.IntN(count), up: true}
	}
	return c
}

func (c *cluster) say(format string, args ...any) {
	c.trace = append(c.trace, fmt.Sprintf(format, args...))
}

func (c *cluster) build(r int) release.Build { return build(r, c.needs[r], c.admits[r]) }

func (c *cluster) now() records { return c.history[len(c.history)-1] }

func (c *cluster) record(node, r int) {
	c.revision++
	next := c.now()
	next.revision, next.release[node], next.changed[node] = c.revision, r, c.revision
	c.history = append(c.history, next)
	c.say("n%d: record %d", node, r)
}

// view is what a node's watch has applied.
func (c *cluster) view(node int) gate.Nodes {
	seen := c.history[c.nodes[node].seen]
	set := gate.Nodes{Revision: seen.revision}
	for i, r := range seen.release {
		if r > 0 {
			set.Known = append(set.Known, gate.Node{Name: fmt.Sprintf("n%d", i), Release: releases[r]})
		}
	}
	return set
}

func (c *cluster) observed() gate.Observed {
	o := c.status.observed()
	if o.Found {
		o.Revision = c.statusAt
	}
	return o
}

// write is a conditional transaction.
func (c *cluster) write(node int, s gate.Status, guard *int64) bool {
	if c.leader != node || c.nodes[node].planned != c.statusAt {
		return false
	}
	if guard != nil {
		for i, r := range c.now().release {
			if r > 0 && c.now().changed[i] > *guard {
				return false
			}
		}
	}
	kind := 2
	if s.State == gate.Done {
		kind = 3
	}
	c.revision++
	c.status, c.statusAt = stored{kind, numberOf(s.Version), numberOf(s.MinimumCompatible)}, c.revision
	c.nodes[node].planned = c.statusAt
	c.say("n%d: status %+v", node, c.status)
	return true
}

func numberOf(r any) int {
	for i := range releases {
		if releases[i] == r {
			return i
		}
	}
	panic("no such release")
}

// depose ends a leadership; what it has under way may land later.
func (c *cluster) depose() {
	if c.leader < 0 {
		return
	}
	m := c.nodes[c.leader]
	if m.phase >= passing {
		c.late |= 1 << m.installed
	}
	c.say("n%d: deposed", c.leader)
	c.leader = -1
}

// crash stops whatever runs on a node.
func (c *cluster) crash(node int) {
	if c.leader == node {
		c.depose()
	}
	c.nodes[node].up, c.nodes[node].serving = false, 0
	c.say("n%d: down", node)
}

// boot starts the reconciler of a node again; its view is as of now.
func (c *cluster) boot(node int) {
	c.nodes[node].up, c.nodes[node].seen = true, len(c.history)-1
	c.say("n%d: up with %d", node, c.nodes[node].installed)
}

// install replaces the release of a node. The API server that runs goes on, if it may; the record
// names it until it has stopped.
func (c *cluster) install(node, r int) {
	if c.leader == node {
		c.depose()
	}
	c.nodes[node].installed = r
	c.say("n%d: installed %d", node, r)
	if c.nodes[node].up {
		c.boot(node)
	}
}

// start is what happens before an API server starts: the node is registered, which is possible only
// when none runs there, and then record and status are read at one revision.
func (c *cluster) start(node int) {
	m := c.nodes[node]
	if !m.up || m.serving == m.installed && c.now().release[node] == m.installed {
		return
	}
	m.serving = 0
	if c.now().release[node] != m.installed {
		c.record(node, m.installed)
		return // somebody else may act in between
	}
	own := gate.Own{Found: true, Readable: true, Controller: true, Release: releases[c.now().release[node]]}
	if gate.Serve(c.build(m.installed), own, c.observed()).OK {
		m.serving = m.installed
		c.say("n%d: API server %d serves", node, m.serving)
	}
}

// lead lets a reconciler do its next step.
func (c *cluster) lead(node int) {
	m := c.nodes[node]
	if !m.up {
		return
	}
	may := gate.Campaign(releases[m.installed], c.view(node)).OK
	switch {
	case c.leader != node && c.leader < 0 && may:
		c.leader, m.phase = node, deciding
		c.terms++
		c.say("n%d: leads, release %d", node, m.installed)
	case c.leader != node:
	case !may:
		c.depose()
	default:
		c.work(node, m)
	}
}

func (c *cluster) work(node int, m *member) {
	switch m.phase {
	case deciding:
		view := c.view(node)
		m.plan, m.planned, m.relied = gate.Decide(c.build(m.installed), c.observed(), view), c.statusAt, view.Revision
		if !m.plan.Hold {
			m.phase = announcing
		}
	case announcing:
		var guard *int64
		if m.plan.Guarded {
			guard = &m.relied
		}
		if m.plan.Before != nil && !c.write(node, *m.plan.Before, guard) {
			m.phase = deciding
			return
		}
		if m.plan.Settle || c.terms > 1 {
			c.late = 0
		}
		m.phase = passing
		c.resources |= 1 << m.installed
		c.say("n%d: pass begins", node)
	case passing:
		c.resources = 1 << m.installed
		m.phase = finishing
		c.say("n%d: pass ended", node)
	case finishing:
		m.phase = steady
		if m.plan.After != nil && !c.write(node, *m.plan.After, nil) {
			m.phase = deciding
		}
	case steady:
		if c.statusAt != m.planned {
			m.phase = deciding
		}
		c.resources = 1 << m.installed
	}
}

// check is the invariant: whatever serves works with all that the base resources may be.
func (c *cluster) check() string {
	for i, m := range c.nodes {
		for r := 1; r <= count; r++ {
			if m.serving > 0 && c.resources&(1<<r) != 0 && (m.serving < c.admits[r] || c.needs[m.serving] > r) {
				return fmt.Sprintf("n%d serves release %d (needs %d) beside base resources of release %d (admits %d)",
					i, m.serving, c.needs[m.serving], r, c.admits[r])
			}
		}
	}
	return ""
}

// step lets one thing happen.
func (c *cluster) step() {
	node := c.random.IntN(3)
	m := c.nodes[node]
	switch c.random.IntN(24) {
	case 0:
		c.install(node, 1+c.random.IntN(count))
	case 1:
		c.crash(node)
	case 2, 3:
		if !m.up {
			c.boot(node)
		}
	case 4:
		if m.serving == 0 && c.now().release[node] != 0 { // an operator removes what does not run
			c.record(node, 0)
		}
	case 5:
		if c.random.IntN(3) == 0 {
			c.revision++
			c.status, c.statusAt = stored{kind: 1}, c.revision
			c.say("status garbled")
		}
	case 6:
		c.depose()
	case 7:
		c.resources |= c.late
		c.late &= c.random.IntN(1 << (count + 1))
	case 8, 9, 10:
		if behind := len(c.history) - 1 - m.seen; m.up && behind > 0 {
			m.seen += 1 + c.random.IntN(behind)
		}
	case 11, 12, 13, 14:
		c.start(node)
	case 15:
		m.serving = 0
	default:
		if c.leader >= 0 && c.random.IntN(2) == 0 {
			node = c.leader
		}
		c.lead(node)
	}
}

// settle brings every node to one release, without faults; then all must serve.
func (c *cluster) settle(r int) string {
	c.depose()
	for node := range c.nodes {
		c.install(node, r)
	}
	for range 30 {
		for node, m := range c.nodes {
			if !m.up {
				c.boot(node)
			}
			m.seen = len(c.history) - 1
			c.start(node)
			c.lead(node)
		}
		if fault := c.check(); fault != "" {
			return fault
		}
	}
	for node, m := range c.nodes {
		if m.serving != r {
			return fmt.Sprintf("n%d does not serve release %d in the end", node, r)
		}
	}
	if want := (stored{3, r, c.admits[r]}); c.status != want {
		return fmt.Sprintf("the status is %+v in the end, want %+v", c.status, want)
	}
	return ""
}

// TestUpgradePaths walks many clusters through whatever can happen to them.
func TestUpgradePaths(t *testing.T) {
	t.Parallel()
	walks, steps := uint64(3000), 150
	if testing.Short() {
		walks = 500
	}
	starts, announced := 0, 0
	for seed := range walks {
		c := newCluster(seed)
		for range steps {
			c.step()
			if fault := c.check(); fault != "" {
				t.Fatalf("seed %d: %s\nneeds %v, admits %v\n%s", seed, fault, c.needs, c.admits, strings.Join(c.trace, "\n"))
			}
		}
		if fault := c.settle(1 + c.random.IntN(count)); fault != "" {
			t.Fatalf("seed %d: %s\nneeds %v, admits %v\n%s", seed, fault, c.needs, c.admits, strings.Join(c.trace, "\n"))
		}
		for _, line := range c.trace {
			if strings.Contains(line, "serves") {
				starts++
			}
			if strings.Contains(line, "status {") {
				announced++
			}
		}
	}
	t.Logf("%d walks of %d steps: %d API servers were let start, %d statuses announced", walks, steps, starts, announced)
	if starts < int(walks) || announced < int(walks) {
		t.Error("too little happened for the walks to tell anything")
	}
}
