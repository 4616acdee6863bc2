package rehearsal

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestAgentsCutOff: what becomes of machines that no control plane hears, although each listens, is
// what the policy says: they are restarted, unless so many silent machines are suspected for long
// enough to be our own fault. A system that is installed is found unreachable, and left alone.
func TestAgentsCutOff(t *testing.T) {
	t.Parallel()
	if raceDetector {
		return // TestScenarios runs one
	}
	watched := installing(fleet.InstallRequest{RootDisk: fleet.DiskSelector{Erase: true}, SeenUp: fleet.SeenUp{Watch: true}})
	list := Brisk()
	list.Providers = slices.Clone(list.Providers)
	list.Providers[0].List = true // which has no lever
	list.Policy.RecoveryAtOnce, list.Policy.RecoveryAtOncePerLocation = 0, 0
	for name, c := range map[string]struct {
		setup    Setup
		share    int
		lasts    time.Duration
		restarts bool
		state    fleet.State
	}{
		"never suspected":         {Brisk(), 0, time.Hour, true, fleet.StateAvailable},
		"suspected too briefly":   {Brisk(), 50, 5 * time.Minute, true, fleet.StateAvailable},
		"suspected all the time":  {Brisk(), 50, time.Hour, false, fleet.StateAvailable},
		"installed and watched":   {watched, 0, time.Hour, false, fleet.StateInstalled},
		"installed and suspected": {watched, 50, time.Hour, false, fleet.StateInstalled},
		"given up":                {list, 0, time.Hour, false, fleet.StateQuarantined},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := FindScenario("agents-cut-off")
			if err != nil {
				t.Fatal(err)
			}
			plan, err := s.Plan(1, 12, 2, 8*time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			c.setup.Policy.SuspectShare, c.setup.Policy.SuspectFor = c.share, c.lasts
			r, err := Run(t.Context(), plan, c.setup, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if n := r.Restarts["reboot"]; r.Failed() || r.Settled == 0 || (n > 0) != c.restarts || r.States[c.state] != 12 {
				t.Errorf("%v, %q, %v, settled after %s, restarts %v\n%v", r.Violations, r.Left, r.States, r.Settled, r.Restarts, r.Timeline)
			}
		})
	}
}

// TestTheTimelineTellsThatRecoveryStops, why, and when it goes on.
func TestTheTimelineTellsThatRecoveryStops(t *testing.T) {
	t.Parallel()
	if raceDetector {
		return // TestScenarios runs one
	}
	s, err := FindScenario("power-loss")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := s.Plan(1, 12, 1, 8*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), plan, Brisk(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	stops := slices.IndexFunc(r.Timeline, func(m Moment) bool {
		return strings.HasPrefix(m.What, "recovery stops (silence): ") && strings.Contains(m.What, "of 12 machines with an agent are silent: the fault is probably ours")
	})
	goesOn := slices.IndexFunc(r.Timeline, func(m Moment) bool { return m.What == "recovery goes on" })
	if stops < 0 || goesOn < stops {
		t.Errorf("%v", r.Timeline)
	}
}
