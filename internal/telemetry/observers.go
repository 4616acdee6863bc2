package telemetry

import (
	"cmp"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// Each observer binds one part of the control plane to its metrics.
var (
	_ bmdb.Observer     = (*databaseMetrics)(nil)
	_ provider.Observer = providerObserver{}
	_ shepherd.Observer = (*shepherdMetrics)(nil)
)

// Database returns the observer of the database.
func (m *Metrics) Database() bmdb.Observer { return &m.database }

type databaseMetrics struct {
	transactions, statements, outcomes *prometheus.CounterVec
	happened                           map[bmdb.Happening]*prometheus.CounterVec
	seconds, held                      *prometheus.HistogramVec
}

func (d *databaseMetrics) register(m *Metrics) {
	d.transactions = m.counter("database_transactions_total", "Transactions by kind and outcome.", "kind", "outcome")
	d.statements = m.counter("database_statements_total", "Statements by the kind of their transaction.", "kind")
	d.seconds = m.histogram("database_transaction_seconds", "How long transactions took, waiting included.", callBuckets, "kind")
	d.outcomes = m.counter("lease_outcomes_total", "Ends of leases by process and outcome.", "process", "outcome")
	d.happened = map[bmdb.Happening]*prometheus.CounterVec{
		bmdb.HappeningSessionLost:   m.counter("sessions_lost_total", "Sessions that were not extended in time, or whose process was gone.", "cause"),
		bmdb.HappeningInstallFailed: m.counter("installs_failed_total", "Attempts at installs that ended without an installed disk.", "cause"),
		bmdb.HappeningRecovery:      m.counter("recoveries_total", "First steps of recovery, by the trouble of the machine. One that is taken back, because the provider has done nothing, counts again when it is tried again.", "cause"),
	}
	for what, causes := range bmdb.Causes() { // a rate needs the zero before the first one
		for _, cause := range causes {
			d.happened[what].WithLabelValues(cause)
		}
	}
	d.held = m.histogram("lease_held_seconds", "How long leases were held.", workBuckets, "process")
}

// Transaction implements bmdb.Observer.
func (d *databaseMetrics) Transaction(kind string, took time.Duration, statements int, err error) {
	d.transactions.WithLabelValues(kind, outcome(err)).Inc()
	d.statements.WithLabelValues(kind).Add(float64(statements))
	d.seconds.WithLabelValues(kind).Observe(took.Seconds())
}

// Outcome implements bmdb.Observer.
func (d *databaseMetrics) Outcome(process fleet.Process, outcome string, held time.Duration) {
	d.outcomes.WithLabelValues(string(process), outcome).Inc()
	d.held.WithLabelValues(string(process)).Observe(held.Seconds())
}

// Happened implements bmdb.Observer.
func (d *databaseMetrics) Happened(what bmdb.Happening, cause string) {
	if counter, ok := d.happened[what]; ok {
		counter.WithLabelValues(cause).Inc()
	}
}

// Provider returns the observer of one provider instance.
func (m *Metrics) Provider(name fleet.ProviderName) provider.Observer {
	m.provider.alone.WithLabelValues(string(name)).Set(0)
	return providerObserver{metrics: &m.provider, name: string(name)}
}

type providerMetrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	alone   *prometheus.GaugeVec
}

func (p *providerMetrics) register(m *Metrics) {
	p.calls = m.counter("provider_calls_total", "Requests to providers by endpoint and HTTP status (none: no complete answer).",
		"provider", "endpoint", "status")
	p.seconds = m.histogram("provider_call_seconds", "How long requests to providers took.", providerBuckets, "provider", "endpoint")
	p.alone = m.gauge("provider_paced_alone", "Whether this process takes a quarter of the provider's limit by itself, because the database hands out no turns.",
		"provider")
}

type providerObserver struct {
	metrics *providerMetrics
	name    string
}

// Call implements provider.Observer.
func (o providerObserver) Call(endpoint string, status int, took time.Duration) {
	code := "none"
	if status != 0 {
		code = strconv.Itoa(status)
	}
	o.metrics.calls.WithLabelValues(o.name, endpoint, code).Inc()
	o.metrics.seconds.WithLabelValues(o.name, endpoint).Observe(took.Seconds())
}

// PacedAlone implements provider.Observer.
func (o providerObserver) PacedAlone(alone bool) {
	value := 0.0
	if alone {
		value = 1
	}
	o.metrics.alone.WithLabelValues(o.name).Set(value)
}

// Shepherd returns the observer of the control loops.
func (m *Metrics) Shepherd() shepherd.Observer { return &m.shepherd }

type shepherdMetrics struct {
	claims, claimed, work *prometheus.CounterVec
	running               *prometheus.GaugeVec
	seconds               *prometheus.HistogramVec
}

func (s *shepherdMetrics) register(m *Metrics) {
	s.claims = m.counter("claims_total", "Claims by process and outcome.", "process", "outcome")
	s.claimed = m.counter("claimed_work_total", "Pieces of work that were claimed.", "process")
	s.work = m.counter("work_total", "Pieces of work by process and how they ended.", "process", "result")
	s.running = m.gauge("work_running", "Pieces of work that this process has under way.", "process")
	s.seconds = m.histogram("work_seconds", "How long work took, act and commit.", workBuckets, "process", "result")
}

// Claimed implements shepherd.Observer.
func (s *shepherdMetrics) Claimed(process fleet.Process, works int, _ time.Duration, err error) {
	s.claims.WithLabelValues(string(process), outcome(err)).Inc()
	s.claimed.WithLabelValues(string(process)).Add(float64(works))
}

// Started implements shepherd.Observer.
func (s *shepherdMetrics) Started(process fleet.Process) {
	s.running.WithLabelValues(string(process)).Inc()
}

// Ended implements shepherd.Observer.
func (s *shepherdMetrics) Ended(process fleet.Process, result shepherd.Result, took time.Duration) {
	s.running.WithLabelValues(string(process)).Dec()
	s.work.WithLabelValues(string(process), string(result)).Inc()
	s.seconds.WithLabelValues(string(process), string(result)).Observe(took.Seconds())
}

type janitorMetrics struct {
	rows    *prometheus.CounterVec
	runs    *prometheus.CounterVec
	failing *prometheus.GaugeVec
	seconds *prometheus.HistogramVec
}

func (j *janitorMetrics) register(m *Metrics) {
	j.runs = m.counter("janitor_runs_total", "Duties that the janitor did, by outcome.", "duty", "outcome")
	j.failing = m.gauge("janitor_duty_failing", "Whether the janitor of this process failed to do a duty when it tried last.", "duty")
	j.rows = m.counter("janitor_rows_total", "Rows that a duty changed; of the check, findings.", "duty")
	j.seconds = m.histogram("janitor_seconds", "How long a duty took.", callBuckets, "duty")
}

// JanitorDone counts one duty of the janitor.
func (m *Metrics) JanitorDone(duty string, rows int, took time.Duration, err error) {
	m.janitor.runs.WithLabelValues(duty, outcome(err)).Inc()
	m.janitor.failing.WithLabelValues(duty).Set(map[bool]float64{true: 1}[err != nil])
	m.janitor.rows.WithLabelValues(duty).Add(float64(rows))
	m.janitor.seconds.WithLabelValues(duty).Observe(took.Seconds())
}

// operationFailed is the result of an operation that was given up (operations.ResultFailed).
const operationFailed = "failed"

// handMetrics count what is done to machines through their providers.
type handMetrics struct {
	steps, operations, probes *prometheus.CounterVec
}

func (h *handMetrics) register(m *Metrics) {
	h.steps = m.counter("recovery_steps_total", "Steps of the recovery ladder by rung and result: what the provider said, not whether it helped. A power cycle that had left the machine off ends with switched-on.",
		"rung", "result")
	h.operations = m.counter("operations_total", "What was asked for by people or the policy: how often a piece of work brought it to that result.",
		"operation", "result")
	for _, o := range fleet.Operations() { // an alert needs the zero before the first one
		h.operations.WithLabelValues(string(o), operationFailed)
	}
	h.probes = m.counter("probes_total", "Probes of installed systems by what shows that they are up, and what was found.", "by", "result")
}

// RecoveryStep counts one step of the recovery ladder.
func (m *Metrics) RecoveryStep(rung fleet.Rung, result string) {
	m.hands.steps.WithLabelValues(string(rung), result).Inc()
}

// Probed counts one probe of an installed system.
func (m *Metrics) Probed(by fleet.SeenBy, result string) {
	m.hands.probes.WithLabelValues(cmp.Or(string(by), "unit"), result).Inc()
}

// Operation counts that an operation got on.
func (m *Metrics) Operation(operation fleet.Operation, result string) {
	m.hands.operations.WithLabelValues(string(operation), result).Inc()
}

// AgentAPI is the observer of the agent API (agentapi.Observer).
type AgentAPI struct {
	metrics *agentMetrics
	refused *prometheus.CounterVec
}

// AgentAPI returns the observer of the agent API.
func (m *Metrics) AgentAPI() AgentAPI { return AgentAPI{metrics: &m.agents, refused: m.refused} }

// Certificate adds when the certificate of a listener of this process expires, or one that it leads
// to, whether that is soon, and whether there is any trouble with it. Call it once for each.
func (m *Metrics) Certificate(listener string, expires func() time.Time, soon func(now time.Time) bool, trouble func(now time.Time) string) {
	add := func(name, help string, value func() float64) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Name: name, Help: help, ConstLabels: prometheus.Labels{"listener": listener},
		}, value))
	}
	add("certificate_expires_timestamp_seconds", "When the certificate of a listener of this process expires, or a certificate that it leads to, in seconds since 1970.",
		func() float64 { return float64(expires().Unix()) })
	add("certificate_expires_soon", "Whether that certificate expires so soon that somebody should have renewed it, or has expired.",
		func() float64 { return map[bool]float64{true: 1}[soon(time.Now())] })
	add("certificate_faulty", "Whether some of those who connect refuse it, or it cannot be renewed: `ironherd status` of this process says why.",
		func() float64 { return map[bool]float64{true: 1}[trouble(time.Now()) != ""] })
}

// Tokens adds whether the tokens of a role run out. Call it once for each.
func (m *Metrics) Tokens(role string, runOut func(now time.Time) bool) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Name: "tokens_expire_soon", ConstLabels: prometheus.Labels{"role": role},
		Help: "Whether the last token of the operator API with a role expires so soon that somebody should have made another, or has expired within the last 30 days.",
	}, func() float64 { return map[bool]float64{true: 1}[runOut(time.Now())] }))
}

// TokensMissing adds whether nobody can call the operator API over TCP because no token counts.
// Call it once.
func (m *Metrics) TokensMissing(missing func(now time.Time) bool) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Name: "tokens_missing",
		Help: "Whether nobody can call the operator API over TCP, because its tokens cannot be read, or none counts though other hosts reach it. Whoever asks for metrics there is refused, too: over the Unix socket they tell it.",
	}, func() float64 { return map[bool]float64{true: 1}[missing(time.Now())] }))
}

// Writable adds whether the database takes changes. Call it once.
func (m *Metrics) Writable(writable func() bool) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Name: "database_writable",
		Help: "Whether the database takes changes of this process: 0 with a full disk, or a server that only reads.",
	}, func() float64 { return map[bool]float64{true: 1}[writable()] }))
}

// DatabaseFaults adds how many faults the janitor's checks of the database have found. A counter
// would not do for an alert: the first check comes before anybody has asked for the metrics. Call
// it once.
func (m *Metrics) DatabaseFaults(count func() int) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Name: "database_faults",
		Help: "Faults of the database that the checks by the janitor of this process have found, until a whole round has not found them any more.",
	}, func() float64 { return float64(count()) }))
}

// ConnectedAgents adds a gauge of how many agents have spoken to this process lately, which count
// returns. Call it once.
func (m *Metrics) ConnectedAgents(count func() int) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Name: "agents", Help: "Agents that have spoken to this process lately.",
	}, func() float64 { return float64(count()) }))
}

type agentMetrics struct {
	calls, reports, flushed *prometheus.CounterVec
	seconds, flushSeconds   *prometheus.HistogramVec
}

func (a *agentMetrics) register(m *Metrics) {
	a.calls = m.counter("agent_calls_total", "Calls of agents by method and gRPC code.", "method", "code")
	a.seconds = m.histogram("agent_call_seconds", "How long calls of agents took.", callBuckets, "method")
	a.reports = m.counter("agent_facts_total", "Facts that were committed for agents, by kind.", "kind")
	a.flushed = m.counter("agent_heartbeats_flushed_total", "Repeated heartbeats that were written in batches, by outcome.", "outcome")
	a.flushSeconds = m.histogram("agent_flush_seconds", "How long writing a batch of heartbeats took.", callBuckets)
}

// AgentCall counts one call of an agent.
func (a AgentAPI) AgentCall(method, code string, took time.Duration) {
	a.metrics.calls.WithLabelValues(method, code).Inc()
	a.metrics.seconds.WithLabelValues(method).Observe(took.Seconds())
}

// AgentReport counts one committed fact.
func (a AgentAPI) AgentReport(kind string) { a.metrics.reports.WithLabelValues(kind).Inc() }

// AgentFlush counts one batch of repeated heartbeats.
func (a AgentAPI) AgentFlush(agents int, took time.Duration, err error) {
	a.metrics.flushed.WithLabelValues(outcome(err)).Add(float64(agents))
	a.metrics.flushSeconds.WithLabelValues().Observe(took.Seconds())
}

// AgentRefused counts a caller that was turned away.
func (a AgentAPI) AgentRefused(why string) { a.refused.WithLabelValues("agent-api", why).Inc() }

// OperatorRefused counts a caller of the operator API that was turned away.
func (m *Metrics) OperatorRefused(why string) {
	m.refused.WithLabelValues("operator-api", why).Inc()
}
