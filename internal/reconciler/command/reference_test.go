package command

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/telemetry/metricstest"
	"github.com/ironherd/ironherd/reconciler"
	"github.com/ironherd/ironherd/reconciler/gate"
)

var update = flag.Bool("update", false, "write what is generated")

//go:generate go test -run TestReferenceIsCurrent . -update

const referenceFile = "../../../docs/reference/reconciler-metrics.md"

// TestReferenceIsCurrent writes down every metric of the reconciler as it is registered, and which
// values its labels have.
func TestReferenceIsCurrent(t *testing.T) {
	t.Parallel()
	m := newMetrics("v1")
	m.watch(&reconciler.Service{}, config{}, resources.Certificate{})
	m.PassEnded(reconciler.Report{}, time.Second, nil)
	m.PassEnded(reconciler.Report{}, time.Second, os.ErrClosed)
	m.Announced(gate.Status{State: gate.Working})
	all, err := metricstest.Of(m.registry, namespace)
	if err != nil {
		t.Fatal(err)
	}
	// No service runs here.
	ofAService := []string{"certificate_expires_timestamp_seconds", "certificate_expires_soon", "status_info", "nodes"}
	for i, one := range all {
		if one.Type == "" && slices.Contains(ofAService, strings.TrimPrefix(one.Name, namespace+"_")) {
			all[i].Type = "gauge"
		} else if one.Type == "" {
			t.Errorf("%s has no value: give it one", one.Name)
		}
	}
	one := func(values ...string) metricstest.Label { return metricstest.Label{Values: values} }
	words := func(text string) metricstest.Label { return metricstest.Label{Words: text} }
	labels := metricstest.Labels{
		"action":                                 one(string(reconciler.Create), string(reconciler.Update), string(reconciler.Recreate), string(reconciler.Prune)),
		"file":                                   words("the file that has the certificate: `etcd_cert`, and the kubeconfig or the file that it names"),
		"go_version":                             words("the version of Go that built it"),
		"minimum_compatible":                     words("the oldest release whose API server may serve"),
		"outcome":                                one("done", "failed"),
		"release":                                words("a release, such as `v1.2.3`, or `unknown`"),
		"state":                                  one(string(gate.Working), string(gate.Done)),
		"ironherd_reconciler_status_info{state}": one(string(gate.Working), string(gate.Done), "unreadable"),
		"version":                                words("the version of Ironherd; of the status, the release whose base resources an API server must be content with"),
	}
	for _, fault := range labels.Faults(all) {
		t.Error(fault)
	}
	page := fmt.Sprintf(referencePage, metricstest.Table(all), labels.Table())
	if err := metricstest.Current(referenceFile, page, *update, "./internal/reconciler/command"); err != nil {
		t.Error(err)
	}
}

const referencePage = `<!-- Generated from the source by ` + "`make generate`" + `; do not edit. -->
# Metrics of the Kubernetes reconciler

` + "`ironherd-reconciler run` serves them at `/metrics` of its `listen`" + `; [kubernetes.md](../ops/kubernetes.md) shows how Prometheus gets them. The alerting rules in
[deploy/prometheus/ironherd.rules.yaml](../../deploy/prometheus/ironherd.rules.yaml) rest on them. Beside these it serves those of the Go runtime and of the process (` + "`go_…`, `process_…`" + `).
[Those of the control plane](metrics.md) are its own. Our leadership is that of the process that tells it.

%s
## Labels

%s`
