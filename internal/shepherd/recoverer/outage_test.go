package recoverer_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// TestWhatFailedInAnOutageIsOverWithIt: when the network is back, agents speak that nobody has
// started again. What comes to them then is nothing that began in the outage.
func TestWhatFailedInAnOutageIsOverWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		herd, handler := newHerd(t, 3, func(p *fleet.Policy) { p.SuspectShare = 0 })
		id := herd.Machines()[0]
		defer herd.Start(handler)()
		time.Sleep(5 * time.Minute)
		until := time.Now().Add(6 * time.Hour)
		check(t, herd.DB.HoldRecovery(t.Context(), "alice", &until, "network works"))
		herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = true }) // nobody reaches it
		time.Sleep(5 * time.Hour)
		herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = false })
		d, err := herd.DB.MachineDetails(t.Context(), id)
		check(t, err)
		started := d.Record.AgentStarted
		agent := bmdb.AgentIdentity{Machine: id, TakeoverGeneration: started.TakeoverGeneration, PublicKey: []byte("key of " + id)}
		check(t, herd.DB.RecordSpoken(t.Context(), agent, started.BootID))
		check(t, herd.DB.ResumeRecovery(t.Context(), "alice", "done"))
		time.Sleep(2 * time.Minute)

		d, err = herd.DB.MachineDetails(t.Context(), id)
		check(t, err)
		plan := lifecycle.Decide(d.Record, d.Environment, d.Now)
		if w := plan.For(fleet.ProcessRecovery); w.Verdict != lifecycle.NotWanted || w.Reason != "the agent is not silent" {
			t.Errorf("recovery of a machine whose agent speaks is %s: %s", w.Verdict, w.Reason)
		}
		if w := plan.For(fleet.ProcessAgentStart); w.Verdict != lifecycle.Later || w.Reason != "when the agent has been silent for 10m0s, it is started again" {
			t.Errorf("agent-start is %s: %s", w.Verdict, w.Reason)
		}

		herd.Change(id, func(h *shepherdtest.Host) { h.Agent = false }) // the host is well
		time.Sleep(20 * time.Minute)
		if state, why := herd.State(id); levers(herd, id) != "" || state != fleet.StateAvailable {
			t.Errorf("pulled: %q; the machine is %s: %s", levers(herd, id), state, why)
		}
	})
}

// TestAStepHasItsTimeFromWhenTheProviderHasDoneIt: the call of a reboot takes minutes, and the host
// needs minutes more to come up. It is not restarted meanwhile.
func TestAStepHasItsTimeFromWhenTheProviderHasDoneIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		herd, handler := newHerd(t, 3, func(p *fleet.Policy) { p.SuspectShare = 0 })
		id := herd.Machines()[0]
		herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
			if at == shepherdtest.Pulling {
				time.Sleep(6 * time.Minute)
			}
			return nil
		}
		restarted := herd.Fake.OnRestart
		herd.Fake.OnRestart = func(pid fleet.ProviderID) {
			restarted(pid)
			herd.Change(id, func(h *shepherdtest.Host) { h.Dead = true })
			// It is up when the start of its agent is tried before the time of the step is over.
			time.AfterFunc(5*time.Minute, func() { herd.Change(id, func(h *shepherdtest.Host) { h.Dead = false }) })
		}
		defer herd.Start(handler, updaterOf(t, herd))()
		time.Sleep(5 * time.Minute)
		herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = true })
		time.Sleep(2 * time.Hour)
		if state, why := herd.State(id); levers(herd, id) != "reboot" || state != fleet.StateAvailable {
			t.Errorf("pulled: %s; the machine is %s: %s", levers(herd, id), state, why)
		}
	})
}

// TestNoCommandIsToldThatIsRefused: who asks for a stop that is shorter than the budget's is not
// told to end that, which nobody can.
func TestNoCommandIsToldThatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		herd, handler := newHerd(t, 6, func(p *fleet.Policy) { p.SuspectShare, p.RecoveryPerHour = 0, 1 })
		defer herd.Start(handler)()
		time.Sleep(5 * time.Minute)
		for _, id := range herd.Machines()[:3] {
			herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = true })
		}
		time.Sleep(25 * time.Minute)
		until := time.Now().Add(10 * time.Minute)
		err := herd.DB.HoldRecovery(t.Context(), "alice", &until, "works")
		if fleet.KindOf(err) != fleet.KindConflict || strings.Contains(err.Error(), "recovery resume") || !strings.Contains(err.Error(), "ask for a later end") {
			t.Errorf("%v", err)
		}
		check(t, herd.DB.HoldRecovery(t.Context(), "alice", nil, "works"))
	})
}
