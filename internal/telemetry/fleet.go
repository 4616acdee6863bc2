package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	// fleetTimeout bounds a reading of the fleet's numbers.
	fleetTimeout = 3 * time.Second
	// fleetCache is how long a reading is good for everybody who asks.
	fleetCache = 2 * time.Second
)

// Fleet adds the numbers of the whole fleet, read from the database when somebody asks. Call it
// once, before Handler is served.
func (m *Metrics) Fleet(db *bmdb.DB, logger *slog.Logger) {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
	}
	m.fleet = &fleetCollector{
		db: db, logger: logger,
		up:            describe("fleet_up", "Whether the numbers of the fleet could be read."),
		machines:      describe("machines", "Machines by state.", "state"),
		oldest:        describe("state_oldest_seconds", "For how long the machine that is in this state for longest has been in it, among the thousand oldest of a provider.", "state"),
		running:       describe("process_running", "Subjects that a process is at work on.", "process"),
		due:           describe("process_due", "Subjects for which a process is due; 10000 means so many or more.", "process"),
		backingOff:    describe("process_backing_off", "Subjects for which a process waits after a failure; not counted beyond 10000.", "process"),
		overdue:       describe("process_overdue_seconds", "For how long the subject that waits longest has been due.", "process"),
		discrepancies: describe("discrepancies", "Disagreements between providers and the database."),
	}
	m.registry.MustRegister(m.fleet)
}

type fleetCollector struct {
	db     *bmdb.DB
	logger *slog.Logger

	up, machines, oldest, running, due, backingOff, overdue, discrepancies *prometheus.Desc

	mu      sync.Mutex
	readAt  time.Time
	summary *bmdb.Summary // nil: could not be read
	since   map[fleet.State]time.Time
	now     time.Time // database time of the summary
}

// refresh reads the numbers, unless the last reading is still good. Of callers at the same time one
// reads, and the others wait for it.
func (c *fleetCollector) refresh(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.readAt) < fleetCache {
		return
	}
	// The others wait for the answer, too, so the end of the first caller's context does not end it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fleetTimeout)
	defer cancel()
	summary, err := c.db.Summary(ctx)
	if err == nil {
		c.since, err = c.db.OldestByState(ctx)
	}
	c.summary, c.now = &summary, summary.At
	if err != nil {
		c.summary = nil
		c.logger.WarnContext(ctx, "cannot read the numbers of the fleet", slog.Any("err", err))
	}
	c.readAt = time.Now()
}

// Describe implements prometheus.Collector.
func (c *fleetCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.up, c.machines, c.oldest, c.running, c.due, c.backingOff, c.overdue, c.discrepancies} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *fleetCollector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	summary, since, now := c.summary, c.since, c.now
	c.mu.Unlock()
	send := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	if summary == nil {
		send(c.up, 0)
		return
	}
	send(c.up, 1)
	send(c.discrepancies, float64(summary.Discrepancies))
	for _, state := range fleet.States() {
		send(c.machines, float64(summary.States[state]), string(state))
		if at, ok := since[state]; ok {
			send(c.oldest, max(now.Sub(at), 0).Seconds(), string(state))
		}
	}
	for _, p := range summary.Processes {
		name := string(p.Process)
		send(c.running, float64(p.Running), name)
		send(c.due, float64(p.Due), name)
		send(c.backingOff, float64(p.BackingOff), name)
		overdue := time.Duration(0)
		if !p.OldestDue.IsZero() {
			overdue = max(now.Sub(p.OldestDue), 0)
		}
		send(c.overdue, overdue.Seconds(), name)
	}
}
