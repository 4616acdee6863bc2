package agentapi_test

import (
	"path/filepath"
	"testing"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server/agentapi"
)

// again starts another agent for a reinstall of a machine whose installed system has come up.
func (h *fixture) again(m *host) *host {
	h.t.Helper()
	ctx := h.t.Context()
	order := h.heartbeat(h.dial(m.key), m.withReport()).GetInstallRequest()
	done := last(m.beat(), order)
	done.InstallReport = &agentv1.InstallReport{InstallGeneration: 1, Attempt: 1, Ok: true, Disk: "/dev/sda"}
	h.heartbeat(h.dial(m.key), done)
	_, err := h.dial(nil).ReportUp(ctx, &agentv1.ReportUpRequest{
		MachineId: string(m.id), InstallGeneration: 1, Attempt: 1, Secret: order.GetBootToken().GetSecret(), BootId: "boot-2",
	})
	h.must(err)
	_, err = h.db.RequestInstall(ctx, "ada", m.id, *image(), true)
	h.must(err)
	s := h.session()
	works := h.claim(s, fleet.ProcessAgentStart)
	if len(works) != 1 {
		h.t.Fatalf("%d machines want an agent", len(works))
	}
	next := h.takeover(works[0])
	h.must(s.Close(ctx, "done"))
	return next
}

// inMemory is a heartbeat from memory.
func (m *host) inMemory() *agentv1.HeartbeatRequest {
	req := m.withReport()
	req.BootId, req.Mode = "boot-memory", agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC
	req.LastInstallGeneration, req.LastInstallAttempt = 1, 1
	return req
}

// An agent in memory is told to leave when its reinstall was called off before anything was
// written: with every answer, by every control plane, and no other agent.
func TestLeaveAfterACancelledReinstall(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil)
	m := h.again(h.machines(1, image())[0])
	client := h.dial(m.key)
	first := h.heartbeat(client, m.inMemory())
	if first.GetInstallRequest() == nil || first.GetLeaveMachine() != nil {
		t.Fatalf("answer %v", first)
	}
	_, err := bmdbtest.CancelInstall(t.Context(), h.db, "ada", m.id, "the wrong image")
	h.must(err)
	beat := last(m.inMemory(), first.GetInstallRequest())
	if order := h.heartbeat(client, beat).GetLeaveMachine(); order != nil {
		t.Fatalf("before its report: %v", order)
	}
	beat.InstallReport = &agentv1.InstallReport{InstallGeneration: 2, Attempt: 1, Error: "called off: nothing was written"}
	for n := range 3 { // the answer may be lost
		order := h.heartbeat(client, beat).GetLeaveMachine()
		if order.GetTakeoverGeneration() != int64(m.generation) || order.GetReason() != "install generation 2 was called off by ada: the wrong image" {
			t.Fatalf("answer %d: %v", n, order)
		}
	}
	h.must(h.stop())
	h.start()
	client = h.dial(m.key)
	if order := h.heartbeat(client, beat).GetLeaveMachine(); order == nil {
		t.Error("a control plane that was started anew does not tell it")
	}
	beat.Mode = agentv1.TakeoverMode_TAKEOVER_MODE_IN_PLACE
	if order := h.heartbeat(client, beat).GetLeaveMachine(); order != nil {
		t.Errorf("an agent in place is told %v", order)
	}
}

// The agent in memory of a host of a list is told to leave when the host is released, within a
// sweep, also where the host is in quarantine.
func TestLeaveAHostThatIsReleased(t *testing.T) {
	t.Parallel()
	for name, quarantined := range map[string]bool{"at work": false, "in quarantine": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t, nil)
			h.must(h.db.SetLevers(t.Context(), providerName, []fleet.Lever{fleet.LeverRelease, fleet.LeverClean}))
			hosts := h.machines(2, nil)
			m := hosts[0]
			_, err := h.db.RecomputeAgenda(t.Context(), 100)
			h.must(err)
			if quarantined {
				h.must(bmdbtest.Quarantine(t.Context(), h.db, "ada", m.id, "its fan is loud"))
			}
			client := h.dial(m.key)
			beat := m.beat()
			beat.Mode = agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC
			for range 2 { // from now on only a sweep makes it ask
				if order := h.heartbeat(client, beat).GetLeaveMachine(); order != nil {
					t.Fatalf("told %v", order)
				}
			}
			_, err = bmdbtest.Operate(t.Context(), h.db, "ada", m.id, fleet.OperationRelease, "sold")
			h.must(err)
			works := h.claim(h.session(), fleet.ProcessOperation)
			h.must(works[0].Note(t.Context(), bmdb.BeginOperation(1, "boot-1")))
			// It wakes the sweep.
			_, err = h.db.RequestInstall(t.Context(), "ada", hosts[1].id, *image(), true)
			h.must(err)
			h.until("it is told to leave", func() bool {
				order := h.heartbeat(client, beat).GetLeaveMachine()
				return order.GetTakeoverGeneration() == int64(m.generation) && order.GetReason() == "release, asked for by ada: sold"
			})
		})
	}
}

// TestAHintOutlivesAnAskThatFails: what a sweep has found is asked for by the next heartbeat, too,
// where the database could not be reached.
func TestAHintOutlivesAnAskThatFails(t *testing.T) {
	t.Parallel()
	engine := &outage{Engine: sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discard})}
	// However late the sweep comes, no agent is looked up again.
	h := newFixtureOn(t, engine, func(c *agentapi.Config, _ *fleet.Policy) { c.Recheck = time.Hour })
	h.must(h.db.SetLevers(t.Context(), providerName, []fleet.Lever{fleet.LeverRelease, fleet.LeverClean}))
	hosts := h.machines(2, nil)
	_, err := h.db.RecomputeAgenda(t.Context(), 100)
	h.must(err)
	clients, beats := make([]agentv1.AgentCallbackClient, 2), make([]*agentv1.HeartbeatRequest, 2)
	for n, m := range hosts {
		clients[n], beats[n] = h.dial(m.key), m.withReport()
		h.heartbeat(clients[n], beats[n])
		beats[n] = m.beat()
	}
	beats[1].Mode = agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC
	for n := range hosts { // from now on only a sweep makes it ask
		h.heartbeat(clients[n], beats[n])
	}
	_, err = bmdbtest.Operate(t.Context(), h.db, "ada", hosts[1].id, fleet.OperationRelease, "sold")
	h.must(err)
	h.must(h.claim(h.session(), fleet.ProcessOperation)[0].Note(t.Context(), bmdb.BeginOperation(1, "boot-1")))
	_, err = h.db.RequestInstall(t.Context(), "ada", hosts[0].id, *image(), true) // it wakes the sweep
	h.must(err)
	engine.away.Store(true)
	for n := range hosts {
		h.until("a sweep makes it ask", func() bool {
			_, err := clients[n].Heartbeat(t.Context(), beats[n])
			return err != nil
		})
	}
	engine.away.Store(false)
	if a := h.heartbeat(clients[0], beats[0]); a.GetInstallRequest() == nil {
		t.Errorf("the install is not handed out: %v", a)
	}
	if a := h.heartbeat(clients[1], beats[1]); a.GetLeaveMachine() == nil {
		t.Errorf("it is not told to leave: %v", a)
	}
}
