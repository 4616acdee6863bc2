package agentapi_test

import (
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/peer"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
)

// sourceKept is an engine that keeps what is read for callers from one address, until it is
// released.
type sourceKept struct {
	bmdb.Engine
	from     net.IP
	begun    atomic.Int32
	released chan struct{}
}

func (e *sourceKept) View(ctx context.Context, fn func(context.Context, bmdb.Tx) error) error {
	if p, ok := peer.FromContext(ctx); ok {
		if addr, ok := p.Addr.(*net.TCPAddr); ok && addr.IP.Equal(e.from) {
			e.begun.Add(1)
			<-e.released
		}
	}
	return e.Engine.View(ctx, fn)
}

// TestAFloodInAMachinesNameIsNotInItsWay: whoever says from elsewhere, again and again, that a
// machine's system is up does not keep that system waiting. One call of theirs is looked at at a
// time.
func TestAFloodInAMachinesNameIsNotInItsWay(t *testing.T) {
	t.Parallel()
	engine := &sourceKept{
		from:     net.IPv4(127, 0, 1, 1),
		Engine:   sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discard}),
		released: make(chan struct{}),
	}
	h := newFixtureOn(t, engine, nil)
	defer close(engine.released)
	m := h.machines(1, image())[0]
	secret := h.heartbeat(h.dial(m.key), m.withReport()).GetInstallRequest().GetBootToken().GetSecret()
	up := func(secret []byte) *agentv1.ReportUpRequest {
		return &agentv1.ReportUpRequest{MachineId: string(m.id), InstallGeneration: 1, Attempt: 1, Secret: secret, BootId: "new"}
	}
	for range 4 {
		h.waits(net.Dialer{LocalAddr: &net.TCPAddr{IP: engine.from}}, agentv1.AgentCallback_ReportUp_FullMethodName,
			up(make([]byte, bmdb.InstallSecretBytes)))
	}
	h.until("the flood is at its turn", func() bool { return engine.begun.Load() > 0 })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := h.dial(nil).ReportUp(ctx, up(secret)); err != nil {
		t.Errorf("the machine's own system: %v", err)
	}
	if n := engine.begun.Load(); n != 1 {
		t.Errorf("%d calls of the flood are looked at at a time, want one", n)
	}
}
