package recoverer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// TestNeverAnswered: hosts that never answer whoever wants to start their first agent are
// restarted, and those that answer and refuse are not.
func TestNeverAnswered(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		host   func(*shepherdtest.Host)
		levers string
		state  fleet.State
		repair string // what history says of what helped
	}{
		"a reboot helps": {
			host: func(h *shepherdtest.Host) { h.Hangs = true }, levers: "reboot", state: fleet.StateAvailable,
			repair: "after the step agent-start, with a boot ID",
		},
		"nothing helps": {
			host: func(h *shepherdtest.Host) { h.Dead = true }, levers: "reboot reboot power-cycle", state: fleet.StateQuarantined,
		},
		"it refuses": {
			host: func(h *shepherdtest.Host) { h.Refuses = true }, state: fleet.StateProvided,
		},
		"it refuses when it is back": {
			host: func(h *shepherdtest.Host) { h.Hangs, h.Refuses = true, true }, levers: "reboot", state: fleet.StateProvided,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				herd, handler := newHerd(t, 8, nil)
				id := herd.Machines()[0]
				herd.Change(id, c.host)
				defer herd.Start(handler)()
				time.Sleep(5 * time.Hour)
				if got := levers(herd, id); got != c.levers {
					t.Errorf("pulled %q, want %q", got, c.levers)
				}
				if state, reason := herd.State(id); state != c.state {
					t.Errorf("the machine is %s (%s), want %s", state, reason, c.state)
				}
				if got := events(t, herd, id, fleet.EventRepaired); (len(got) > 0) != (c.repair != "") || len(got) > 0 && !strings.HasSuffix(got[0], c.repair) {
					t.Errorf("history says %q", got)
				}
				if len(herd.Fake.Pulls()) != len(strings.Fields(c.levers)) {
					t.Errorf("other machines were restarted: %v", herd.Fake.Pulls())
				}
			})
		})
	}
}

// TestNoneAnswers: where no host answers, the fault is probably ours: nothing is restarted before
// somebody could look.
func TestNoneAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 12
		// A stop that is longer than the longest backoff.
		herd, handler := newHerd(t, n, func(p *fleet.Policy) { p.SuspectFor = 3 * time.Hour })
		all := herd.Machines()
		for _, id := range all {
			herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = true })
		}
		defer herd.Start(handler)()
		time.Sleep(45 * time.Minute)
		if pulls := herd.Fake.Pulls(); len(pulls) != 0 {
			t.Fatalf("%d were restarted", len(pulls))
		}
		hold, err := bmdbtest.RecoveryHold(t.Context(), herd.DB)
		check(t, err)
		if hold == nil || !strings.Contains(hold.Reason, "the fault is probably ours") {
			t.Fatalf("recovery is held by %+v", hold)
		}
		for _, id := range all {
			herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = false }) // it was our network
		}
		time.Sleep(5 * time.Hour)
		for _, id := range all {
			if state, reason := herd.State(id); state != fleet.StateAvailable || len(levers(herd, id)) > len("reboot") {
				t.Errorf("machine %s is %s (%s), pulled %q", id, state, reason, levers(herd, id))
			}
		}
		// Recovery goes on when less than a quarter does not answer. Of these, one that is still in its
		// backoff may be restarted.
		if pulls := herd.Fake.Pulls(); len(pulls) >= n/4 {
			t.Errorf("%d of %d were restarted", len(pulls), n)
		}
	})
}

// steps are the counted steps that need the provider.
func steps(r *fleet.Repair) string {
	var parts []string
	if r == nil {
		return "none"
	}
	for rung, n := range r.Steps {
		if rung != fleet.RungAgentStart && rung != fleet.RungQuarantine {
			parts = append(parts, fmt.Sprintf("%s %d", rung, n))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
