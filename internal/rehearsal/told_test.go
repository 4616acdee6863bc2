package rehearsal

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestEveryEventIsTold, in words, and so is every share of 100 %.
func TestEveryEventIsTold(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("plan.go")
	if err != nil {
		t.Fatal(err)
	}
	whats := regexp.MustCompile(`What += "([a-z-]+)"`).FindAllStringSubmatch(string(source), -1)
	if len(whats) < 30 {
		t.Fatalf("only %d events are found", len(whats))
	}
	for _, found := range whats {
		e := Event{What: What(found[1]), Share: 100, For: time.Hour}
		text := e.told()
		if byController := e.What == Crash || e.What == Pause; (text == "") != byController {
			t.Errorf("%s is told as %q", e.What, text)
		}
		private := strings.Contains(found[1], "-") && strings.Contains(text, found[1])
		if private || strings.Contains(text, "{") || strings.Contains(text, "%") || strings.HasPrefix(text, " ") {
			t.Errorf("%s is told as %q", e.What, text)
		}
	}
}

// checkTold checks that the timeline of a scenario tells what happens, in words.
func checkTold(t *testing.T, scenario string, timeline []Moment) {
	t.Helper()
	var all []string
	for _, m := range timeline {
		all = append(all, m.What)
		if private := regexp.MustCompile(`\b(ask|rack|power|tenth|listener|database)-[a-z]|, \d+ %`).FindString(m.What); private != "" {
			t.Errorf("%q is a word of ours in %q", private, m.What)
		}
	}
	for _, want := range map[string][]string{
		"lose-rack":          {"the machines of one location are without power, for 30m0s", "the power is back: machines boot"},
		"power-loss":         {"all machines are without power, for 20m0s", "the power is back: machines boot"},
		"deploy":             {"an operating system is asked for on all machines", "a machine of metal restarts into what was installed"},
		"agents-die":         {"the agents of a tenth of the machines die, and half of these machines hang", "a machine of metal is rebooted"},
		"provider-throttles": {"providers refuse 80 % of the calls, as too many, for 1h0m0s", "providers do not refuse calls any more"},
		"provider-outage":    {"providers fail all calls, for 1h0m0s", "providers serve again"},
		"controller-crash":   {"control plane controller-0 is killed", "control plane controller-0 is started again"},
		"listener-down":      {"the agent API of every control plane is down, for 30m0s", "the agent API of every control plane is up again"},
		"agents-cut-off":     {"no agent reaches a control plane, for 30m0s", "agents reach the control planes again"},
		"database-outage":    {"the database cannot be reached, for 10m0s", "the database can be reached again"},
	}[scenario] {
		if !slices.Contains(all, want) {
			t.Errorf("the timeline does not tell %q: %v", want, timeline)
		}
	}
}

// TestWellIsTheLastWord: while machines that were found unreachable boot, not everything is well.
func TestWellIsTheLastWord(t *testing.T) {
	t.Parallel()
	if raceDetector {
		return // TestScenarios runs one
	}
	for _, name := range []string{"lose-rack", "power-loss"} {
		s, err := FindScenario(name)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := s.Plan(1, 6, 1, 8*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(t.Context(), plan, installing(fleet.InstallRequest{RootDisk: fleet.DiskSelector{Erase: true}, SeenUp: fleet.SeenUp{Watch: true}}), Options{})
		if err != nil {
			t.Fatal(err)
		}
		found := slices.ContainsFunc(r.Timeline, func(m Moment) bool { return strings.Contains(m.What, " unreachable") })
		if last := r.Timeline[len(r.Timeline)-1]; r.Failed() || !found || last.What != "everything is well" {
			t.Errorf("%s: %v, %q\n%v", name, r.Violations, r.Left, r.Timeline)
		}
	}
}
