package agentapi_test

import (
	"testing"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server/agentapi"
)

// Agents that install share what the others leave of the heartbeats of a second: each tells how it
// goes on so much less often.
func TestProgressStaysBelowTheHeartbeatsOfASecond(t *testing.T) {
	t.Parallel()
	h := newFixture(t, func(c *agentapi.Config, p *fleet.Policy) {
		c.HeartbeatsPerSecond, c.CallRate = 2, fleet.Rate{Every: time.Millisecond, Burst: 100}
		p.HeartbeatInterval, p.SilentAfter = 10*time.Second, 30*time.Second
	})
	hosts := h.machines(15, nil)
	for i, m := range hosts {
		beat := m.beat()
		if i < 10 {
			beat.InstallProgress = &agentv1.InstallProgress{InstallGeneration: 1, Attempt: 1, Phase: agentv1.InstallProgress_PHASE_WRITING}
		}
		h.heartbeat(h.dial(m.key), beat)
	}
	client := h.dial(hosts[14].key)
	// Five speak every 10 s, and leave 1.5 of two heartbeats a second to ten.
	h.until("progress of each every 6,666 ms", func() bool { return h.heartbeat(client, hosts[14].beat()).GetProgressIntervalMs() == 6666 })
}
