package agentapi_test

import (
	"runtime"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server/agentapi"
)

// BenchmarkHeartbeat is one repeated heartbeat, agent and server together, over TLS on loopback.
func BenchmarkHeartbeat(b *testing.B) {
	h := newFixture(b, func(c *agentapi.Config, _ *fleet.Policy) { c.CallRate = fleet.Rate{Every: 1, Burst: 1 << 30} })
	m := h.machines(1, nil)[0]
	client := h.dial(m.key)
	h.heartbeat(client, m.beat())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Heartbeat(b.Context(), m.beat()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkConnections is what an agent that stays connected costs: its first heartbeat, and the
// memory of both ends.
func BenchmarkConnections(b *testing.B) {
	h := newFixture(b, nil)
	hosts := h.machines(100, nil) // as many as one claim gives
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	clients := make([]agentv1.AgentCallbackClient, 0, b.N)
	for i := 0; b.Loop(); i++ {
		m := hosts[i%len(hosts)]
		client := h.dial(m.key)
		h.heartbeat(client, m.beat())
		clients = append(clients, client)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapInuse+after.StackInuse-before.HeapInuse-before.StackInuse)/float64(len(clients)), "B/agent")
	runtime.KeepAlive(clients)
}
