package telemetry_test

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/telemetry/metricstest"
	"github.com/ironherd/ironherd/internal/token"
)

//go:generate go test -run TestReferenceIsCurrent . -update

const (
	referenceFile           = "../../docs/reference/metrics.md"
	reconcilerReferenceFile = "../../docs/reference/reconciler-metrics.md"
)

// metricLabels are the labels of the control plane's metrics.
func metricLabels(t *testing.T) metricstest.Labels {
	t.Helper()
	causes := bmdb.Causes()
	one := func(values ...string) metricstest.Label { return metricstest.Label{Values: values} }
	words := func(text string) metricstest.Label { return metricstest.Label{Words: text} }
	var methods []string
	for _, m := range agentv1.AgentCallback_ServiceDesc.Methods {
		methods = append(methods, m.MethodName)
	}
	byProvider := slices.DeleteFunc(fleet.Processes(), func(p fleet.Process) bool { return !p.OfProvider() })
	loops := slices.DeleteFunc(fleet.Roles(), func(r fleet.Role) bool { return r == fleet.RoleAgentAPI || r == fleet.RoleOperatorAPI })
	return metricstest.Labels{
		"by":                                     one(cmp.Or(string(fleet.SeenByUnit), "unit"), string(fleet.SeenBySSH), string(fleet.SeenByHTTP)),
		"code":                                   words("the name of a code of gRPC, such as `OK`"),
		"duty":                                   one(constants(t, "../shepherd/janitor/janitor.go", "Duty")...),
		"endpoint":                               words("method and path in the provider's API, with a placeholder for each ID"),
		"go_version":                             words("the version of Go that built it"),
		"ironherd_agent_facts_total{kind}":       one("spoken", "hardware", "handed out", "install", "up"),
		"kind":                                   words("what a transaction is for, such as `claim`: constants of the source"),
		"ironherd_installs_failed_total{cause}":  one(causes[bmdb.HappeningInstallFailed]...),
		"ironherd_lease_outcomes_total{outcome}": one(fleet.Strings([]fleet.Event{fleet.EventFinished, fleet.EventFailed, fleet.EventCancelled, fleet.EventExpired, fleet.EventRevoked})...),
		"ironherd_operations_total{result}":      one(constants(t, "../shepherd/operations/operations.go", "Result")...),
		"ironherd_probes_total{result}":          one(constants(t, "../shepherd/prober/prober.go", "Result")...),
		"ironherd_provider_failures{process}":    one(fleet.Strings(byProvider)...),
		"ironherd_recoveries_total{cause}":       one(causes[bmdb.HappeningRecovery]...),
		"ironherd_recovery_steps_total{result}":  one(constants(t, "../shepherd/recoverer/recoverer.go", "Result")...),
		"ironherd_recovery_stopped{cause}":       {Values: append(fleet.Strings(fleet.StopCauses()), "unknown"), Words: stopCauses},
		"ironherd_role_missing{role}":            one(fleet.Strings(loops)...),
		"ironherd_sessions_lost_total{cause}":    one(causes[bmdb.HappeningSessionLost]...),
		"ironherd_tokens_expire_soon{role}":      one(fleet.Strings(token.Roles())...),
		"listener":                               one(string(server.ForAgents)+"-api", string(server.ForOperators)+"-api"),
		"method":                                 one(methods...),
		"operation":                              one(fleet.Strings(fleet.Operations())...),
		"outcome":                                one("ok", "error"),
		"process":                                one(fleet.Strings(fleet.Processes())...),
		"provider":                               words("the `name` of one of `providers`"),
		"result":                                 one(constants(t, "../shepherd/outcome.go", "Result")...),
		"rung":                                   one(fleet.Strings(fleet.Rungs())...),
		"state":                                  {Values: fleet.Strings(fleet.States()), Words: "see [the states](states.md)"},
		"status":                                 words("a status of HTTP, such as `200`, or `none`"),
		"version":                                words("the version of Ironherd"),
		"why":                                    one(constants(t, "../server/refusal.go", "Refusal")...),
	}
}

const stopCauses = "`asked`: a person has asked for it; `budget`: as many machines were restarted within an hour as the policy allows; `silence`: so many are silent at once that the fault is " +
	"probably ours; `grace`: most of those were heard again, and the others have time; `unknown`: a control plane of another version has stopped it"

// constants returns the constants of a type that is a word, as the source declares them.
func constants(t *testing.T, file, of string) (values []string) {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range regexp.MustCompile(`(?m)^\t\w+ +`+of+` += "([^"]+)"`).FindAllStringSubmatch(string(source), -1) {
		values = append(values, c[1])
	}
	if len(values) < 3 {
		t.Errorf("%s declares %q of %s only", file, values, of)
	}
	return values
}

// TestReferenceIsCurrent writes down every metric as it is registered, and which values its labels
// have. No metric is without a value in this test, and no value is another one.
func TestReferenceIsCurrent(t *testing.T) {
	t.Parallel()
	m, db := observed(t)
	defer db.Close()
	scrape(t, m) // which reads the numbers of the fleet
	all, err := metricstest.Of(m.Registry(), "ironherd")
	if err != nil {
		t.Fatal(err)
	}
	labels := metricLabels(t)
	for _, fault := range labels.Faults(all) {
		t.Error(fault)
	}
	var ofFleet, ofProcess []metricstest.Metric
	for _, one := range all {
		if one.Type == "" {
			t.Errorf("%s has no value: let observed give it one", one.Name)
		}
		if fleetMetrics(t)[one.Name] {
			ofFleet = append(ofFleet, one)
		} else {
			ofProcess = append(ofProcess, one)
		}
	}
	page := fmt.Sprintf(referencePage, metricstest.Table(ofFleet), metricstest.Table(ofProcess), labels.Table())
	if err := metricstest.Current(referenceFile, page, *update, "./internal/telemetry"); err != nil {
		t.Error(err)
	}
}

const referencePage = `<!-- Generated from the source by ` + "`make generate`" + `; do not edit. -->
# Metrics of the control plane

Each process that has the role ` + "`operator-api`" + ` serves them at ` + "`/metrics`" + `; [Who may call](../ops/running.md#who-may-call) shows how Prometheus gets them. The alerting rules
in [deploy/prometheus/ironherd.rules.yaml](../../deploy/prometheus/ironherd.rules.yaml) rest on them. Beside these it serves those of the Go runtime and of the process (` + "`go_…`, `process_…`" + `).
No metric has a series for each machine. A histogram has the series ` + "`…_bucket`, `…_sum` and `…_count`" + `. [Those of the reconciler](reconciler-metrics.md) are its own.

## Of the fleet

They are read from the database when somebody asks. Every process tells the same: take one of them, as ` + "`max by (job, cluster, state) (ironherd_machines)`" + ` does.
While the database cannot be read, ` + "`ironherd_fleet_up`" + ` alone is told, and is 0.

%s
## Of one process

What it has seen since it started: sum counters over the processes.

%s
## Labels

%s`

// fleetMetrics are those that the collector of the fleet's numbers describes.
func fleetMetrics(t *testing.T) map[string]bool {
	t.Helper()
	source, err := os.ReadFile("fleet.go")
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, m := range regexp.MustCompile(`describe\("(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		names["ironherd_"+m[1]] = true
	}
	return names
}

// TestWhatIsRegisteredIsThere: every metric that the source registers, perhaps later than this
// package's tests see, is in the reference.
func TestWhatIsRegisteredIsThere(t *testing.T) {
	t.Parallel()
	there, seen := inReference(t), 0
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?:\b(?:counter|gauge|histogram|describe|add)\(\s*|\bName: )"(\w+)"`).FindAllStringSubmatch(string(source), -1) {
			if seen++; !there["ironherd_"+m[1]] {
				t.Errorf("%s registers %s, which the reference lacks: let observed call what does so", file, m[1])
			}
		}
	}
	if seen < len(fleetMetrics(t))+20 {
		t.Errorf("%d metrics were found only", seen)
	}
}

// inReference are the metrics of both pages.
func inReference(t *testing.T) map[string]bool {
	t.Helper()
	there := make(map[string]bool)
	for _, file := range []string{referenceFile, reconcilerReferenceFile} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?m)^\\| `(ironherd_\\w+)` \\|").FindAllStringSubmatch(string(text), -1) {
			there[m[1]] = true
		}
	}
	return there
}

// TestWhatIsNamedIsThere: every metric that a page or a file for operators names is in the
// reference.
func TestWhatIsNamedIsThere(t *testing.T) {
	t.Parallel()
	there := inReference(t)
	named := 0
	look := func(path string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`\bironherd_[a-z_]+`).FindAllString(string(text), -1) {
			switch named++; {
			case there[name], there[regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")]:
			case name == "ironherd_", name == "ironherd_reconciler_": // of all of them
			default:
				t.Errorf("%s names %s, which is no metric", path, name)
			}
		}
	}
	look("../../README.md")
	for _, dir := range []string{"../../docs", "../../deploy"} {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && slices.Contains([]string{".md", ".yaml", ".json"}, filepath.Ext(path)) && !strings.Contains(path, "/reference/") {
				look(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if named < 50 {
		t.Errorf("%d names were looked at only", named)
	}
}
