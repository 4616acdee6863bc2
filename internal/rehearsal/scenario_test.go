package rehearsal

import (
	"fmt"
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
			checkTold(t, s.Name, r.Timeline)
			switch s.Name {
			case "listener-down":
				if len(r.Restarts) > 0 {
					t.Errorf("machines were restarted although nothing was wrong with them: %v", r.Restarts)
				}
				// It is down from the first minute to the 31st.
				if r.Settled < 31*time.Minute || r.Settled >= s.length {
					t.Errorf("settled after %s\n%v", r.Settled, r.Timeline)
				}
			case "deploy", "controller-crash", "database-outage":
				if r.States["installed"] != 12 || r.Restarts["reboot"]+r.Restarts["power-cycle"] > 0 {
					t.Errorf("states %v, restarts %v", r.States, r.Restarts)
				}
			case "agents-cut-off":
				if r.Restarts["reboot"] == 0 { // suspect_for is over before the agents are back
					t.Errorf("nothing was rebooted: %v\n%v", r.Restarts, r.Timeline)
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
// capacity unused, where the machines are installed already, and where there are two of them. In a
// list the hosts that are not taken in are there all the same.
func TestScenariosReachTheFleet(t *testing.T) {
	t.Parallel()
	if raceDetector {
		return // TestScenarios runs one
	}
	for of, want := range map[string]string{
		"lose-rack": " silent", "deploy": "8 installing", "agents-die": "1 silent",
		"lose-rack of a list": " silent", "deploy of a list": "8 installing", "agents-die of a list": "1 silent",
	} {
		t.Run(of, func(t *testing.T) {
			t.Parallel()
			name, list := strings.CutSuffix(of, " of a list")
			s, err := FindScenario(name)
			if err != nil {
				t.Fatal(err)
			}
			machines := 40
			if of == "agents-die" {
				machines = 2
			}
			plan, err := s.Plan(1, machines, 1, 8*time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			setup := Brisk()
			setup.Providers = slices.Clone(setup.Providers[:1])
			setup.Providers[0].Provisioner.MaxMachines, setup.Providers[0].List = 8, list
			if name == "deploy" {
				setup.Providers[0].Provisioner.Install = &fleet.InstallRequest{Image: setup.Image, RootDisk: fleet.DiskSelector{Erase: true}}
			}
			r, err := Run(t.Context(), plan, setup, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if r.Failed() || r.Settled == 0 || !slices.ContainsFunc(r.Timeline, func(m Moment) bool { return m.At > 0 && strings.Contains(m.What, want) }) {
				t.Errorf("%v, %q, %v", r.Violations, r.Left, r.Timeline)
			}
			for _, m := range r.Timeline {
				if strings.Contains(m.What, "no machine is known") {
					t.Errorf("something was asked of a host that is no machine: %v", m)
				}
			}
		})
	}
}

// TestTheTimelineTellsWhatIsRefused, and why: machines that are refused for the same reason are
// told together, none is told that got what was asked for, and who tries again is told once.
func TestTheTimelineTellsWhatIsRefused(t *testing.T) {
	t.Parallel()
	if raceDetector {
		return // TestScenarios runs one
	}
	plan := Plan{
		Seed: 1, Machines: 4, Controllers: 1, Length: 10 * time.Minute, Settle: 4 * time.Hour, Lead: true,
		Events: []Event{
			{What: AskRelease, At: time.Minute, Target: 1},
			{What: AskRelease, At: time.Minute, Target: 2},
			{What: AskDeploy, At: time.Minute + time.Second, Share: 100},
			{What: AskWithdraw, At: 2 * time.Minute, Target: 3},
			{What: Vanishes, At: 3 * time.Minute, For: time.Second, Target: 0},
		},
	}
	if err := plan.Validate(); err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), plan, Brisk(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	var refused []string
	for _, m := range r.Timeline {
		if strings.Contains(m.What, "comes to nothing") {
			refused = append(refused, fmt.Sprintf("%s: %s (%d)", m.At, m.What, m.Times))
		}
	}
	want := []string{
		"1m1s: a reinstall comes to nothing: the machine is being given back (release, asked for by operator); `ironherd machine withdraw ID --reason WHY` calls that off (2)",
		"2m0s: calling off what was asked for comes to nothing: no operation of the machine is under way (1)",
		"3m1s: forgetting the machine that is lost comes to nothing: provider metal has not said that the machine is gone: `ironherd machine release ID --reason WHY` gives it back (1)",
	}
	if !slices.Equal(refused, want) {
		t.Errorf("got %q, want %q\n%v", refused, want, r.Timeline)
	}
}

// installing is a setup whose only provider asks for an install on each machine.
func installing(of fleet.InstallRequest) Setup {
	setup := Brisk()
	setup.Providers = slices.Clone(setup.Providers)
	of.Image = setup.Image
	setup.Providers[0].Provisioner.Install = &of
	return setup
}

// TestStepsThatAreRefusedDoNotCount: a provider that refuses calls has no machine under recovery,
// so that the control plane may turn to another one (I10).
func TestStepsThatAreRefusedDoNotCount(t *testing.T) {
	t.Parallel()
	if raceDetector {
		return // TestScenarios runs one
	}
	s, err := FindScenario("provider-throttles")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := s.Plan(1, 40, 1, 8*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	plan.Events = slices.Clone(plan.Events)
	plan.Events[0].Share = 50 // and each that is refused keeps all others back for a while
	setup := Brisk()
	setup.Policy.RecoveryAtOnce = 1
	r, err := Run(t.Context(), plan, setup, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Failed() || r.Restarts["reboot"] != 2 || r.Calls[0].Total["reboot"] <= 2 {
		t.Errorf("%v, %q, %v, %v", r.Violations, r.Left, r.Restarts, r.Calls)
	}
	// The machines are well while the provider goes on refusing.
	if r.Settled == 0 || r.Settled >= s.length {
		t.Errorf("settled after %s\n%v", r.Settled, r.Timeline)
	}
}

// TestInstalledMachinesThatHang are found where they are watched, however long that takes, and are
// counted where nobody watches them. A deploy asks for what the configuration asks for, so they are
// watched after it, too.
func TestInstalledMachinesThatHang(t *testing.T) {
	t.Parallel()
	if raceDetector {
		return // TestScenarios runs one
	}
	s, err := FindScenario("agents-die")
	if err != nil {
		t.Fatal(err)
	}
	die, err := s.Plan(1, 21, 1, 8*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	deploy := Plan{
		Seed: 1, Machines: 3, Controllers: 1, Length: 26 * time.Minute, Settle: 4 * time.Hour, Lead: true,
		Events: []Event{{What: AskDeploy, At: time.Minute, Share: 100}, {What: HostHangs, At: 25 * time.Minute}},
	}
	for _, c := range []struct {
		plan                   Plan
		watch                  bool
		unreachable, unwatched int
	}{{die, false, 0, 2}, {die, true, 2, 0}, {deploy, false, 0, 1}, {deploy, true, 1, 0}} {
		setup := installing(fleet.InstallRequest{RootDisk: fleet.DiskSelector{Erase: true}, SeenUp: fleet.SeenUp{Watch: c.watch}})
		setup.Policy.UnreachableAfter = 30 * time.Minute // it is found after the end of the scenario
		r, err := Run(t.Context(), c.plan, setup, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if r.Failed() || r.States["unreachable"] != c.unreachable || r.Unwatched != c.unwatched {
			t.Errorf("%+v: %v, %q, %v, %d unwatched\n%v", c, r.Violations, r.Left, r.States, r.Unwatched, r.Timeline)
		}
		last := r.Timeline[len(r.Timeline)-1]
		if last.What != needsSomebody || last.At != r.Settled || c.watch == (r.Settled < c.plan.Length) {
			t.Errorf("%+v: settled after %s, and in the end %v", c, r.Settled, last)
		}
	}
}

// TestInstallsThatMayNotErase are refused on a machine that has booted from its only disk: the
// fleet is never there. That is told at once, and not after a week.
func TestInstallsThatMayNotErase(t *testing.T) {
	t.Parallel()
	plan := Plan{Seed: 1, Machines: 2, Controllers: 1, Length: time.Minute, Lead: true}
	_, err := Run(t.Context(), plan, installing(fleet.InstallRequest{RootDisk: fleet.DiskSelector{Pick: fleet.PickSmallest}}), Options{})
	if fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), "what provider metal installs is refused") ||
		!strings.Contains(err.Error(), "root_disk: {erase: true}") {
		t.Errorf("got %v", err)
	}
}

// TestInstallsEndInTime: an agent ends an install that takes longer than the policy allows, as a
// real one does, so that with too short a time nothing is ever installed.
func TestInstallsEndInTime(t *testing.T) {
	t.Parallel()
	if raceDetector {
		return // TestScenarios runs one
	}
	s, err := FindScenario("deploy")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := s.Plan(1, 3, 1, 2*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	setup := Brisk()
	setup.Policy.InstallTimeout = time.Minute // and the quickest install takes a minute and a half
	r, err := Run(t.Context(), plan, setup, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Violations) > 0 || r.Settled != 0 || !strings.Contains(r.Left, "the install did not end within 1m0s") || r.States["installed"] != 0 {
		t.Errorf("%v, left %q, %v, settled after %s\n%v", r.Violations, r.Left, r.States, r.Settled, r.Timeline)
	}
}

// TestWhatDestroysDisksIsTold: a reinstall by the provider and a machine that is given back are in
// the timeline, and counted.
func TestWhatDestroysDisksIsTold(t *testing.T) {
	t.Parallel()
	if raceDetector {
		return // TestScenarios runs one
	}
	s, err := FindScenario("lose-rack")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := s.Plan(1, 12, 2, 8*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	plan.Events = append(slices.Clone(plan.Events), Event{What: AskRelease, At: 35 * time.Minute, Target: 0})
	setup := Brisk()
	setup.Policy.RecoveryReboots, setup.Policy.RecoveryPowerCycles, setup.Policy.RecoveryReinstalls = 0, 0, 1
	r, err := Run(t.Context(), plan, setup, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Failed() || r.Restarts["reinstall"] != 4 || r.Released != 1 {
		t.Errorf("%v, %q, restarts %v, %d given back", r.Violations, r.Left, r.Restarts, r.Released)
	}
	told := make(map[string]int)
	for _, m := range r.Timeline {
		told[m.What] += m.Times
	}
	if told["a machine of metal is reinstalled by its provider, which destroys what is on its disk"] != 4 || told["a machine of metal is given back"] != 1 {
		t.Errorf("%v", r.Timeline)
	}
}

// TestLosingARackSaysWhatItHits: how many machines of which provider, what max_machines leaves
// out, and that it is no rehearsal where no machine is hit.
func TestLosingARackSaysWhatItHits(t *testing.T) {
	t.Parallel()
	if raceDetector {
		return // TestScenarios runs one
	}
	s, err := FindScenario("lose-rack")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := s.Plan(1, 6, 1, 8*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	setup := Brisk()
	other := setup.Providers[0]
	other.Name, other.Provisioner.MaxMachines = "other", 1
	list := other
	list.Name, list.List = "hosts", true
	setup.Providers = append(slices.Clone(setup.Providers), other, list)
	calls := make(map[bool]int)
	r, err := Run(t.Context(), plan, setup, Options{Progress: func(there bool, _ time.Duration) { calls[there]++ }})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range r.Timeline {
		all = append(all, m.What)
	}
	for _, want := range []string{"max_machines lets other have 1 of the 6 machines that there is room for", "without power: 2 of metal, 0 of other, 0 of hosts"} {
		if !slices.Contains(all, want) {
			t.Errorf("%q is not told: %q", want, all)
		}
	}
	if calls[false] == 0 || calls[true] == 0 {
		t.Errorf("progress is told %v times", calls)
	}
	plan.Machines = 1
	if _, err := Run(t.Context(), plan, Brisk(), Options{}); fleet.KindOf(err) != fleet.KindInvalid {
		t.Errorf("where no machine is in that location: %v", err)
	}
}
