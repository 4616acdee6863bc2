package telemetry_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server/fleetapi"
)

// TestAlertingRules: the rules that we give name metrics that there are, all states that are
// trouble or on their way or that call us, and processes that there are. What `ironherd status`
// says needs a look has a rule, whatever its kind: the rule's label names the concern.
func TestAlertingRules(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deploy/prometheus/ironherd.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Labels      struct{ Severity, Concern string }
				Annotations struct{ Summary string }
			}
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile("testdata/metrics.golden")
	if err != nil {
		t.Fatal(err)
	}
	reconcilers, err := os.ReadFile("../reconciler/command/metrics.go")
	if err != nil {
		t.Fatal(err)
	}
	there := func(metric string) bool {
		if name, ok := strings.CutPrefix(metric, "ironherd_reconciler_"); ok {
			return strings.Contains(string(reconcilers), `("`+name+`", `)
		}
		return strings.Contains(string(own), "\n"+metric+" ")
	}
	states, concerns := map[string][]string{}, []string{}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			if rule.Alert == "" || rule.Expr == "" || rule.Labels.Severity == "" || rule.Annotations.Summary == "" {
				t.Errorf("a rule lacks something: %+v", rule)
			}
			if c := rule.Labels.Concern; c != "" {
				concerns = append(concerns, c)
			}
			for _, metric := range regexp.MustCompile(`ironherd_\w+`).FindAllString(rule.Expr, -1) {
				if !there(metric) {
					t.Errorf("%s: there is no metric %s", rule.Alert, metric)
				}
			}
			for _, label := range regexp.MustCompile(`(state|process)=~"([^"]*)"`).FindAllStringSubmatch(rule.Expr, -1) {
				for value := range strings.SplitSeq(label[2], "|") {
					if label[1] == "process" && !slices.Contains(fleet.Processes(), fleet.Process(value)) {
						t.Errorf("%s: there is no process %s", rule.Alert, value)
					} else if label[1] == "state" {
						states[rule.Alert] = append(states[rule.Alert], value)
					}
				}
			}
		}
	}
	for alert, is := range map[string]func(fleet.State) bool{
		"IronherdMachinesInTrouble": fleet.State.Trouble, "IronherdMachinesLate": fleet.State.Moving,
		"IronherdNobodyListens": fleet.State.Calls,
	} {
		var want []string
		for _, s := range fleet.States() {
			if is(s) {
				want = append(want, string(s))
			}
		}
		if !slices.Equal(states[alert], want) {
			t.Errorf("%s is of %v, want %v", alert, states[alert], want)
		}
	}
	slices.Sort(concerns)
	concerns = slices.Compact(concerns)
	if want := slices.Sorted(slices.Values(fleetapi.ConcernKinds())); !slices.Equal(concerns, want) {
		t.Errorf("the rules are of the concerns %q, want all: %q", concerns, want)
	}
}

// TestConcernKindsAreAll: the list of the kinds, which the rules are held to, has every kind that a
// concern is made with.
func TestConcernKindsAreAll(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../server/fleetapi/concern.go")
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	for _, c := range regexp.MustCompile(`(?m)^\tconcern\w+ += "([\w-]+)"$`).FindAllStringSubmatch(string(source), -1) {
		declared = append(declared, c[1])
	}
	if !slices.Equal(declared, fleetapi.ConcernKinds()) {
		t.Errorf("declared are %q, listed %q", declared, fleetapi.ConcernKinds())
	}
	for _, made := range regexp.MustCompile(`Kind: +(\S+?),`).FindAllStringSubmatch(string(source), -1) {
		if !strings.HasPrefix(made[1], "concern") {
			t.Errorf("a concern is made of the kind %s, which is none of the constants", made[1])
		}
	}
}
