package telemetry

import (
	"net/http"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const namespace = "ironherd"

// Buckets in seconds, for calls to the database and from agents, for calls to providers, and for
// pieces of work.
var (
	callBuckets     = []float64{.0002, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}
	providerBuckets = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	workBuckets     = []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800}
)

// Metrics is the metrics of one process.
type Metrics struct {
	registry *prometheus.Registry
	fleet    *fleetCollector

	database databaseMetrics
	provider providerMetrics
	shepherd shepherdMetrics
	janitor  janitorMetrics
	agents   agentMetrics
	hands    handMetrics
	refused  *prometheus.CounterVec
}

// New returns the metrics of a process of this version.
func New(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	build := m.gauge("build_info", "The version that is running; always 1.", "version", "go_version")
	build.WithLabelValues(version, runtime.Version()).Set(1)
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.database.register(m)
	m.provider.register(m)
	m.shepherd.register(m)
	m.janitor.register(m)
	m.agents.register(m)
	m.hands.register(m)
	m.refused = m.counter("refusals_total", "Callers that were turned away, by listener and why.", "listener", "why")
	return m
}

// Handler serves the metrics in Prometheus' format.
func (m *Metrics) Handler() http.Handler {
	serve := promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry, MaxRequestsInFlight: 4})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if m.fleet != nil {
			m.fleet.refresh(r.Context())
		}
		serve.ServeHTTP(w, r)
	})
}

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	m.registry.MustRegister(v)
	return v
}

func (m *Metrics) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
	m.registry.MustRegister(v)
	return v
}

func (m *Metrics) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}, labels)
	m.registry.MustRegister(v)
	return v
}

// outcome is the label of what may fail.
func outcome(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}
