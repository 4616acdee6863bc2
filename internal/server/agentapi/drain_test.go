package agentapi_test

import (
	"context"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/server/agentapi"
)

// stuck is an observer that keeps each call until it is let go, whatever becomes of its context.
type stuck struct {
	entered chan struct{}
	release chan struct{}
}

func (s stuck) AgentReport(string) {
	s.entered <- struct{}{}
	<-s.release
}

func (stuck) AgentCall(string, string, time.Duration) {}

func (stuck) AgentFlush(int, time.Duration, error) {}

func (stuck) AgentRefused(string) {}

// TestDrainEnds: a call that ignores its cancellation does not keep the server from stopping.
func TestDrainEnds(t *testing.T) {
	t.Parallel()
	h := newFixture(t, func(c *agentapi.Config, _ *fleet.Policy) { c.Drain = 200 * time.Millisecond })
	m := h.machines(1, nil)[0]
	h.must(h.stop())
	held := stuck{entered: make(chan struct{}), release: make(chan struct{})}
	api := agentapi.New(h.db, h.config, agentapi.Options{Logger: discard, Certificates: h.certificates, Observer: held})
	l, err := server.Listen(t.Context(), "127.0.0.1:0")
	h.must(err)
	h.address = l.Address()
	ctx, cancel := context.WithCancel(t.Context())
	served, called := make(chan error, 1), make(chan struct{})
	go func() { served <- l.Serve(ctx, api.Serve) }()
	client := h.dial(m.key)
	go func() {
		defer close(called)
		_, _ = client.Heartbeat(t.Context(), m.beat())
	}()
	<-held.entered
	cancel()
	select {
	case err := <-served:
		h.must(err)
	case <-time.After(20 * time.Second): //nolint:forbidigo // nobody is to wait so long
		t.Error("the server waits for a call that ignores its cancellation")
	}
	close(held.release)
	<-called
}
