package telemetry_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/ironherd/ironherd/internal/fleet"
)

// alertingRule is one rule of the file.
type alertingRule struct {
	Alert, Expr string
	Labels      struct{ Severity, Concern string }
	Annotations struct{ Summary string }
}

// alertingRules are the rules that we give, by group.
func alertingRules(t *testing.T) map[string][]alertingRule {
	t.Helper()
	text, err := os.ReadFile("../../deploy/prometheus/ironherd.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []alertingRule
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	groups := make(map[string][]alertingRule)
	for _, g := range file.Groups {
		groups[g.Name] = g.Rules
	}
	return groups
}

// TestAlertingRules: the rules that we give name values that labels can have, and all states that
// are trouble or on their way or that call us. What `ironherd status` says needs a look has a rule,
// whatever its kind: the rule's label names the concern. TestWhatIsNamedIsThere holds their metrics
// to those that there are.
func TestAlertingRules(t *testing.T) {
	t.Parallel()
	labels := metricLabels(t)
	states, concerns := map[string][]string{}, []string{}
	for _, group := range alertingRules(t) {
		for _, rule := range group {
			if rule.Alert == "" || rule.Expr == "" || rule.Labels.Severity == "" || rule.Annotations.Summary == "" {
				t.Errorf("a rule lacks something: %+v", rule)
			}
			if regexp.MustCompile(`\b(i?rate|i?increase|changes)\(`).MatchString(rule.Expr) && rule.Alert != "IronherdGiveBackFails" {
				t.Errorf("%s: what happened before the first scrape, as the first check of the database does, raises no alert: %s", rule.Alert, rule.Expr)
			}
			if c := rule.Labels.Concern; c != "" {
				concerns = append(concerns, c)
			}
			for _, series := range regexp.MustCompile(`(ironherd_\w+)\{([^}]*)\}`).FindAllStringSubmatch(rule.Expr, -1) {
				for _, label := range regexp.MustCompile(`(\w+)(?:=|!=|=~|!~)"([^"]*)"`).FindAllStringSubmatch(series[2], -1) {
					for value := range strings.SplitSeq(label[2], "|") {
						if !slices.Contains(labels.Of(series[1], label[1]), value) {
							t.Errorf("%s: %s{%s} is never %s", rule.Alert, series[1], label[1], value)
						}
						if label[1] == "state" {
							states[rule.Alert] = append(states[rule.Alert], value)
						}
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
	if want := slices.Sorted(slices.Values(fleet.Strings(fleet.ConcernKinds()))); !slices.Equal(concerns, want) {
		t.Errorf("the rules are of the concerns %q, want all: %q", concerns, want)
	}
}

// TestAlertsKeepFleetsApart: what every control plane exports of its fleet is taken of one of them,
// for each job and cluster: else the numbers of one fleet hide those of another. What a process
// knows of itself alone is not summed up, so that the alert says where to ask.
func TestAlertsKeepFleetsApart(t *testing.T) {
	t.Parallel()
	ofFleet := fleetMetrics(t)
	groups := alertingRules(t)
	if len(groups["ironherd"]) == 0 || len(ofFleet) == 0 {
		t.Fatalf("there are no rules, or no metrics of the fleet: %v, %v", groups, ofFleet)
	}
	aggregation := regexp.MustCompile(`\b(max|min|sum|count|avg)\b( by \(([^)]*)\))?`)
	for _, rule := range groups["ironherd"] {
		aggregations := aggregation.FindAllStringSubmatch(rule.Expr, -1)
		for _, a := range aggregations {
			if !strings.HasPrefix(a[3], "job, cluster") {
				t.Errorf("%s: %q mixes fleets", rule.Alert, a[0])
			}
		}
		if on := regexp.MustCompile(`\bon \(([^)]*)\)`).FindStringSubmatch(rule.Expr); on != nil && on[1] != "job, cluster" {
			t.Errorf("%s: compares fleets %s", rule.Alert, on[0])
		}
		for _, metric := range regexp.MustCompile(`ironherd_\w+`).FindAllString(rule.Expr, -1) {
			switch named := strings.Contains(rule.Annotations.Summary, "{{ $labels.instance }}"); {
			case ofFleet[metric] && len(aggregations) == 0:
				t.Errorf("%s: each control plane has an alert of its own of %s", rule.Alert, metric)
			case !ofFleet[metric] && len(aggregations) > 0:
				t.Errorf("%s: %s is of one process, and which one is lost", rule.Alert, metric)
			case !ofFleet[metric] && !named:
				t.Errorf("%s: does not say which process: %s", rule.Alert, rule.Annotations.Summary)
			}
		}
	}
}

// TestNoAlertOfInstallsThatWaitForAgents: work is overdue where `ironherd status` says so, which
// leaves out what no loop does.
func TestNoAlertOfInstallsThatWaitForAgents(t *testing.T) {
	t.Parallel()
	var without []string
	for _, p := range fleet.Processes() {
		if !p.Looped() {
			without = append(without, string(p))
		}
	}
	for _, rule := range alertingRules(t)["ironherd"] {
		if rule.Labels.Concern != "overdue" {
			continue
		}
		if want := `ironherd_process_overdue_seconds{process!~"` + strings.Join(without, "|") + `"}`; !strings.Contains(rule.Expr, want) {
			t.Errorf("%s is of %s, want %s", rule.Alert, rule.Expr, want)
		}
	}
}

// TestPagesSayHowToScrape: what the rules rest on, Prometheus has to fetch.
func TestPagesSayHowToScrape(t *testing.T) {
	t.Parallel()
	for page, want := range map[string]struct{ job, port, label string }{
		"running.md":    {"ironherd", "7480", ""},
		"kubernetes.md": {"ironherd-reconciler", "9479", "cluster"},
	} {
		text, err := os.ReadFile("../../docs/ops/" + page)
		if err != nil {
			t.Fatal(err)
		}
		block := regexp.MustCompile("(?s)```yaml\n(scrape_configs:.*?)```").FindSubmatch(text)
		if block == nil {
			t.Errorf("%s shows no job that scrapes", page)
			continue
		}
		var file struct {
			ScrapeConfigs []struct {
				JobName       string `yaml:"job_name"`
				StaticConfigs []struct {
					Targets []string
					Labels  map[string]string
				} `yaml:"static_configs"`
			} `yaml:"scrape_configs"`
		}
		if err := yaml.Unmarshal(block[1], &file); err != nil || len(file.ScrapeConfigs) != 1 {
			t.Errorf("%s: %v, %+v", page, err, file)
			continue
		}
		job := file.ScrapeConfigs[0]
		targets := job.StaticConfigs[0]
		if _, port, _ := strings.Cut(targets.Targets[0], ":"); job.JobName != want.job || port != want.port || want.label != "" && targets.Labels[want.label] == "" {
			t.Errorf("%s shows %+v, want %+v", page, job, want)
		}
		if !strings.Contains(string(text), "`listen`") && !strings.Contains(string(text), ".listen`") {
			t.Errorf("%s does not say where Prometheus reaches it", page)
		}
	}
}

// TestConcernKindsAreAll: the list of the kinds, which the rules are held to, has every kind that a
// concern is made with.
func TestConcernKindsAreAll(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../fleet/concern.go")
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	for _, c := range regexp.MustCompile(`(?m)^\tConcern\w+ +ConcernKind = "([\w-]+)"$`).FindAllStringSubmatch(string(source), -1) {
		declared = append(declared, c[1])
	}
	if !slices.Equal(declared, fleet.Strings(fleet.ConcernKinds())) {
		t.Errorf("declared are %q, listed %q", declared, fleet.Strings(fleet.ConcernKinds()))
	}
}
