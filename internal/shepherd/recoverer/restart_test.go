package recoverer_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// TestHeardBeforeTheRestart: the machine is heard again by itself, with the same boot ID, after it
// was asked to be rebooted. The reboot that comes later is what helps, and no further step is taken
// against a machine that is heard. Where the reboot never comes, the machine is well when the time
// of the step is over, and history says that it was not restarted.
func TestHeardBeforeTheRestart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lag      time.Duration
		evidence string
	}{
		"it comes":       {4 * time.Minute, "with another boot ID"},
		"it never comes": {-1, "had no effect: the machine was not restarted: its agent is heard"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				herd, handler := newHerd(t, 3, nil)
				id := herd.Machines()[0]
				herd.Fake.RestartLag = c.lag
				herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
					if at == shepherdtest.Pulled {
						time.AfterFunc(20*time.Second, func() { herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = false }) })
					}
					return nil
				}
				defer herd.Start(handler)()
				time.Sleep(5 * time.Minute)
				herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = true })
				for levers(herd, id) == "" {
					time.Sleep(time.Second)
				}
				time.Sleep(10 * time.Minute)
				if got := events(t, herd, id, fleet.EventRepaired); c.lag > 0 && (len(got) != 1 || !strings.Contains(got[0], c.evidence)) {
					t.Errorf("evidence after the time of the step %q, want %q", got, c.evidence)
				}
				time.Sleep(time.Hour)
				if got := levers(herd, id); got != "reboot" {
					t.Errorf("pulled %q", got)
				}
				if state, reason := herd.State(id); state != fleet.StateAvailable {
					t.Errorf("the machine is %s (%s)", state, reason)
				}
				if got := events(t, herd, id, fleet.EventRepaired); len(got) != 1 || !strings.Contains(got[0], c.evidence) {
					t.Errorf("evidence %q, want %q", got, c.evidence)
				}
				if r := herd.Record(id); herd.Host(id).Agent && r.AgentSeen.TakeoverGeneration != r.AgentStarted.TakeoverGeneration {
					t.Errorf("agent %+v, seen %+v", r.AgentStarted, r.AgentSeen)
				}
			})
		})
	}
}
