package rehearsal

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestScenarios rehearses each scenario on a small fleet: it comes to an end, keeps every promise,
// and what has nothing to do with machines restarts none.
func TestScenarios(t *testing.T) {
	t.Parallel()
	for _, s := range Scenarios() {
		if raceDetector && s.Name != "listener-down" {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			plan, err := s.Plan(1, 12, 2, 8*time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Run(t.Context(), plan, Brisk(), Options{})
			if err != nil {
				t.Fatal(err)
			}
			if r.Failed() || r.Settled == 0 {
				t.Errorf("violations %v, left %q, settled after %s\n%v", r.Violations, r.Left, r.Settled, r.Timeline)
			}
			total := 0
			for _, n := range r.States {
				total += n
			}
			if total != 12 || len(r.Calls) != 1 || r.Calls[0].Peak < 1 {
				t.Errorf("states %v, calls %v", r.States, r.Calls)
			}
			if !slices.ContainsFunc(r.Timeline, func(m Moment) bool { return strings.Contains(m.What, string(plan.Events[0].What)) }) {
				t.Errorf("the timeline does not tell what happened: %v", r.Timeline)
			}
			switch s.Name {
			case "listener-down":
				if len(r.Restarts) > 0 {
					t.Errorf("machines were restarted although nothing was wrong with them: %v", r.Restarts)
				}
			case "deploy", "controller-crash", "database-outage":
				if r.States["installed"] != 12 || r.Restarts["reboot"]+r.Restarts["power-cycle"] > 0 {
					t.Errorf("states %v, restarts %v", r.States, r.Restarts)
				}
			case "agents-die", "provider-throttles", "provider-outage":
				if r.Restarts["reboot"] == 0 { // of the machine that hangs
					t.Errorf("nothing was rebooted: %v", r.Restarts)
				}
			}
		})
	}
	for _, bad := range []struct {
		name string
		plan Plan
		ends time.Duration
	}{{"no such", Plan{}, time.Hour}, {"deploy", Plan{}, time.Minute}, {"deploy", Plan{Machines: -1}, time.Hour}} {
		s, err := FindScenario(bad.name)
		if err == nil {
			_, err = s.Plan(1, 1+2*bad.plan.Machines, 1, bad.ends)
		}
		if err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

// TestScenariosReachTheFleet: a scenario has its effect also where max_machines leaves most of the
// capacity unused, and where the machines are installed already.
func TestScenariosReachTheFleet(t *testing.T) {
	t.Parallel()
	if raceDetector {
		return // TestScenarios runs one
	}
	for name, want := range map[string]string{"lose-rack": " silent", "deploy": "8 installing"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := FindScenario(name)
			if err != nil {
				t.Fatal(err)
			}
			plan, err := s.Plan(1, 40, 1, 8*time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			setup := Brisk()
			setup.Providers = slices.Clone(setup.Providers[:1])
			setup.Providers[0].Provisioner.MaxMachines = 8
			if name == "deploy" {
				setup.Providers[0].Provisioner.Install = &fleet.InstallRequest{Image: setup.Image}
			}
			r, err := Run(t.Context(), plan, setup, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if r.Failed() || r.Settled == 0 || !slices.ContainsFunc(r.Timeline, func(m Moment) bool { return m.At > 0 && strings.Contains(m.What, want) }) {
				t.Errorf("%v, %q, %v", r.Violations, r.Left, r.Timeline)
			}
		})
	}
}
