package command

import (
	"context"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/secret"
	"github.com/ironherd/ironherd/reconciler"
	"github.com/ironherd/ironherd/reconciler/gate"
)

// metrics is the metrics of the process. It is the service's observer.
type metrics struct {
	registry  *prometheus.Registry
	passes    *prometheus.CounterVec
	duration  prometheus.Histogram
	changes   *prometheus.CounterVec
	requests  prometheus.Counter
	announced *prometheus.CounterVec

	mu sync.Mutex
	// last is the report of the last pass of this process.
	last reconciler.Report
}

const namespace = "ironherd_reconciler"

func newMetrics(version string) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		passes:   counter("passes_total", "Passes over the base resources, by how they ended.", "outcome"),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "pass_seconds", Help: "How long passes took.",
			Buckets: []float64{.001, .005, .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}),
		changes:   counter("changes_total", "Objects that were changed, by what was done.", "action"),
		requests:  prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "requests_total", Help: "Requests of passes to the API server."}),
		announced: counter("announcements_total", "Accepted writes of the status, by state.", "state"),
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "build_info", Help: "The version that is running; always 1."},
		[]string{"version", "go_version"})
	build.WithLabelValues(version, runtime.Version()).Set(1)
	m.registry.MustRegister(build, m.passes, m.duration, m.changes, m.requests, m.announced,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// PassEnded implements reconciler.Observer.
func (m *metrics) PassEnded(report reconciler.Report, took time.Duration, err error) {
	outcome := "done"
	if err != nil {
		outcome = "failed"
	}
	m.passes.WithLabelValues(outcome).Inc()
	m.duration.Observe(took.Seconds())
	for action, n := range map[reconciler.Action]int{
		reconciler.Create: report.Created, reconciler.Update: report.Updated,
		reconciler.Recreate: report.Recreated, reconciler.Prune: report.Pruned,
	} {
		m.changes.WithLabelValues(string(action)).Add(float64(n))
	}
	m.requests.Add(float64(report.Requests))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = report
}

// lastOf returns the report of the last pass, and an empty one if none has ended in a leadership
// whose state is given.
func (m *metrics) lastOf(state reconciler.State) reconciler.Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	if state.PassedAt.IsZero() {
		return reconciler.Report{}
	}
	return m.last
}

// Announced implements reconciler.Observer.
func (m *metrics) Announced(status gate.Status) {
	m.announced.WithLabelValues(string(status.State)).Inc()
}

// watch adds the state of a service and the certificates that it presents. Those in files of their
// own are read at each scrape.
func (m *metrics) watch(s *reconciler.Service, c config, kubeconfig resources.Certificate) {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(namespace+"_"+name, help, labels, nil)
	}
	m.registry.MustRegister(&stateCollector{
		service:  s,
		metrics:  m,
		config:   c,
		presents: kubeconfig,
		expires:  describe("certificate_expires_timestamp_seconds", "When the client certificate in a file expires.", "file"),
		soon:     describe("certificate_expires_soon", "Whether that certificate expires so soon that somebody should have renewed it, or has expired.", "file"),
		leading:  describe("leading", "Whether this process leads."),
		term:     describe("term", "Number of our leadership; 0 when we do not lead."),
		campaign: describe("may_lead", "Whether the releases present allow this node to lead."),
		blocked:  describe("blocked", "Whether we hold as the leader, because of a release that is present: nothing is kept meanwhile."),
		status:   describe("status_info", "The status as it was seen last; always 1.", "state", "version", "minimum_compatible"),
		nodes:    describe("nodes", "Nodes that count, by release; unknown for those whose release is not known.", "release"),
		faulty:   describe("nodes_unreadable", "Nodes whose record cannot be read."),
		passed:   describe("last_pass_timestamp_seconds", "When the last pass of our leadership ended; 0 when there was none."),
		failed:   describe("last_pass_failed", "Whether the last pass of our leadership failed, in an object or as a whole."),
		blocks:   describe("last_pass_blocks", "Whether API servers may have to wait for what the last pass of our leadership could not do."),

		objects:   describe("objects", "Objects that are wanted, as of the last pass of our leadership; 0 when there was none."),
		failures:  describe("failures", "Objects that the last pass of our leadership could not make what is wanted, or that others undo again and again, as far as it got."),
		required:  describe("failures_required", "Of the failures of the last pass of our leadership, those that API servers may have to wait for."),
		paused:    describe("paused", "Objects that are not what is wanted, and that the last pass of our leadership left alone because somebody has paused them."),
		deleting:  describe("deleting", "Objects that are no longer wanted and that their finalizers hold, as of the last pass of our leadership; 0 when there was none."),
		unhealthy: describe("unhealthy", "Objects that are not healthy, as far as the last pass of our leadership knew."),
	})
}

type stateCollector struct {
	service  *reconciler.Service
	metrics  *metrics
	config   config
	presents resources.Certificate // to the API server

	expires, soon, leading, term, campaign, blocked, status, nodes, faulty, passed, failed, blocks *prometheus.Desc
	objects, failures, required, paused, deleting, unhealthy                                       *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.expires, c.soon, c.leading, c.term, c.campaign, c.blocked, c.status, c.nodes, c.faulty, c.passed, c.failed, c.blocks,
		c.objects, c.failures, c.required, c.paused, c.deleting, c.unhealthy,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	state := c.service.State()
	send := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	flag := map[bool]float64{true: 1}
	for file, certificate := range c.config.certificates(c.presents) {
		send(c.expires, float64(certificate.NotAfter.Unix()), file)
		send(c.soon, flag[secret.ExpiresSoon(certificate.NotBefore, certificate.NotAfter, time.Now())], file)
	}
	send(c.leading, flag[state.Term > 0])
	send(c.term, float64(state.Term))
	send(c.campaign, flag[state.Campaign.OK])
	send(c.blocked, flag[state.Blocked != ""])
	if s := state.Status; s.Found {
		word := string(s.Status.State)
		if s.Unreadable != "" {
			word = "unreadable"
		}
		send(c.status, 1, word, s.Status.Version.String(), s.Status.MinimumCompatible.String())
	}
	byRelease, faulty := map[string]int{}, 0
	for _, n := range state.Nodes.Nodes {
		if n.Fault != "" {
			faulty++
		}
		switch {
		case !n.Counts():
		case n.Known:
			byRelease[n.Release.String()]++
		default:
			byRelease["unknown"]++
		}
	}
	for name, n := range byRelease {
		send(c.nodes, float64(n), name)
	}
	send(c.faulty, float64(faulty))
	passed := 0.0
	if !state.PassedAt.IsZero() {
		passed = float64(state.PassedAt.UnixMilli()) / 1000
	}
	send(c.passed, passed)
	send(c.failed, flag[state.PassError != ""])
	send(c.blocks, flag[state.PassError != "" && !state.PassReady])
	report, required := c.metrics.lastOf(state), 0
	for _, f := range report.Failures {
		if f.Required {
			required++
		}
	}
	send(c.objects, float64(report.Objects))
	send(c.failures, float64(len(report.Failures)))
	send(c.required, float64(required))
	send(c.paused, float64(report.Paused))
	send(c.deleting, float64(len(report.Deleting)))
	send(c.unhealthy, float64(report.Unhealthy))
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry, MaxRequestsInFlight: 4})
}

// serveHandler answers load balancers: 200 when the API server of this node may serve and answers,
// 503 with the reason when not.
func serveHandler(ask func(context.Context) gate.Verdict) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		verdict := ask(r.Context())
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		if !verdict.OK {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write([]byte(verdict.Reason + "\n"))
	})
}
