package agentapi_test

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
)

// firstKept is an engine that keeps the first read about a machine, once it is told which, until it
// is released.
type firstKept struct {
	bmdb.Engine
	machine  atomic.Pointer[string]
	kept     atomic.Bool // there is one
	released chan struct{}
}

func (e *firstKept) View(ctx context.Context, fn func(context.Context, bmdb.Tx) error) error {
	var about bool
	err := e.Engine.View(ctx, func(ctx context.Context, tx bmdb.Tx) error {
		return fn(ctx, &noticingTx{Tx: tx, machine: e.machine.Load(), about: &about})
	})
	if about && e.machine.Swap(nil) != nil {
		e.kept.Store(true)
		<-e.released
	}
	return err
}

// noticingTx notices whether it is about a machine.
type noticingTx struct {
	bmdb.Tx
	machine *string
	about   *bool
}

func (t *noticingTx) notice(args []any) {
	*t.about = *t.about || t.machine != nil && strings.Contains(fmt.Sprintf("%s", args), *t.machine)
}

func (t *noticingTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	t.notice(args)
	return t.Tx.QueryRowContext(ctx, query, args...)
}

func (t *noticingTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	t.notice(args)
	return t.Tx.QueryContext(ctx, query, args...)
}

// TestAFloodInAMachinesNameIsNotInItsWay: whoever says from elsewhere, again and again, that a
// machine's system is up does not keep that system waiting. One call of theirs is looked at at a
// time.
func TestAFloodInAMachinesNameIsNotInItsWay(t *testing.T) {
	t.Parallel()
	engine := &firstKept{
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
	named := string(m.id)
	engine.machine.Store(&named)
	for range 4 {
		h.waits(net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, 1)}}, agentv1.AgentCallback_ReportUp_FullMethodName,
			up(make([]byte, bmdb.InstallSecretBytes)))
	}
	h.until("the flood is at its turn", engine.kept.Load)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := h.dial(nil).ReportUp(ctx, up(secret)); err != nil {
		t.Errorf("the machine's own system: %v", err)
	}
	if n := h.counter.took("look for an installed system"); n != 1 {
		t.Errorf("%d calls were looked at while the first one of the flood was, want that of the system alone", n)
	}
}
