package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
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
		db: db, logger: logger, neverDone: make(map[fleet.Process]time.Time),
		up:            describe("fleet_up", "Whether the numbers of the fleet could be read."),
		machines:      describe("machines", "Machines by state.", "state"),
		oldest:        describe("state_oldest_seconds", "For how long the machine that is in this state for longest has been in it.", "state"),
		running:       describe("process_running", "Subjects that a process is at work on.", "process"),
		due:           describe("process_due", "Subjects for which a process is due; 10000 means so many or more.", "process"),
		backingOff:    describe("process_backing_off", "Subjects for which a process waits after a failure; 10000 means so many or more.", "process"),
		overdue:       describe("process_overdue_seconds", "For how long the subject that waits longest has been due, but for those that recovery has no room for under the policy. While it was never done on one: since this process knows of such a one.", "process"),
		discrepancies: describe("discrepancies", "Disagreements between providers and the database; 10000 means so many or more."),
		stopped:       describe("recovery_stopped", "Whether recovery is stopped, by the cause. `ironherd recovery status` also says what else it waits for, as for an agent listener.", "cause"),
		failing:       describe("installs_failing", fmt.Sprintf("Machines in the state installing whose install has failed %d times in a row or more; 10000 means so many or more.", bmdb.InstallFailing)),
		restored:      describe("database_restored", "Whether the database looks restored or copied, so that work waits until a person accepts it."),
		listener:      describe("agent_listener_up", "Whether some control plane is up whom agents can call. While none is, no silence counts."),
		full:          describe("agent_listener_full", "Whether some agent listener turns callers away for want of room or has a certificate that they refuse, or did minutes ago. Meanwhile no silence counts."),
		missing:       describe("role_missing", "Whether no live control plane has a role that has something to do.", "role"),
		refusing:      describe("hosts_refusing", "How many machines in the state provided get no agent because their host does not let the control plane in, as where it does not know its SSH key; 10000 means so many or more."),
		refused:       describe("host_keys_refused", "How many machines in the state provided get no agent because their host shows a key that is not the known one; 10000 means so many or more."),
		unasked:       describe("systems_unasked", "How many installed systems could not be asked whether they are up, for policy.unreachable_after or longer; 10000 means so many or more."),
		unserved:      describe("provider_unserved", "Whether no live control plane serves a provider in a role that some of them have, as when it has left the configuration.", "provider"),
		unusable:      describe("provider_entries_unusable", fmt.Sprintf("How many entries of a provider's list its last pass has left alone, until a person puts them right; %d means more than %d.", bmdb.UnusableNamed+1, bmdb.UnusableNamed), "provider"),
		paused:        describe("provider_paused_seconds", "For how long a provider has been paused; 0: it is not.", "provider"),
		failures:      describe("provider_failures", "How often a process has failed at a provider since it last succeeded.", "provider", "process"),
	}
	m.registry.MustRegister(m.fleet)
}

type fleetCollector struct {
	db     *bmdb.DB
	logger *slog.Logger

	up, machines, oldest, running, due, backingOff, overdue, discrepancies, stopped, restored *prometheus.Desc
	listener, full, missing, refused, refusing, unasked, unserved, unusable, paused, failures *prometheus.Desc
	failing                                                                                   *prometheus.Desc

	mu       sync.Mutex
	readAt   time.Time
	readings *readings // nil: could not be read
	// neverDone is since when a process is seen to be due that was never done on some subject.
	neverDone map[fleet.Process]time.Time
}

// readings are the numbers of one moment.
type readings struct {
	summary bmdb.Summary
	since   map[fleet.State]time.Time
	env     fleet.Environment
	// failing is how many machines fail at their installs again and again.
	failing int
	// providers fail, or do not.
	providers []bmdb.ProviderRow
	// overdue is for how long each process has been due.
	overdue map[fleet.Process]time.Duration
}

func (c *fleetCollector) read(ctx context.Context) (r readings, err error) {
	if r.summary, err = c.db.Summary(ctx); err != nil {
		return r, err
	}
	if r.since, err = c.db.OldestByState(ctx); err != nil {
		return r, err
	}
	if r.providers, err = c.db.Providers(ctx); err != nil {
		return r, err
	}
	if r.failing, err = c.db.CountFailingInstalls(ctx); err != nil {
		return r, err
	}
	r.env, err = c.db.Environment(ctx)
	return r, err
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
	r, err := c.read(ctx)
	c.readings = &r
	if err != nil {
		c.readings = nil
		c.logger.WarnContext(ctx, "cannot read the numbers of the fleet", slog.Any("err", err))
	} else {
		r.overdue = c.overdueBy(r.summary)
	}
	c.readAt = time.Now()
}

// overdueBy returns for how long each process has been due. What was never done is due since ever;
// of that, it counts since it is known here, as `ironherd status` does, and hides meanwhile what
// else is late. An instant that is to come is from before a clock was set back, and is none. It is
// called with mu held.
func (c *fleetCollector) overdueBy(s bmdb.Summary) map[fleet.Process]time.Duration {
	overdue := make(map[fleet.Process]time.Duration, len(s.Processes))
	for _, p := range s.Processes {
		since, known := c.neverDone[p.Process]
		switch {
		case p.Startable() == 0:
			delete(c.neverDone, p.Process)
			continue
		case p.OldestDue.Unix() > 0:
			delete(c.neverDone, p.Process)
			since = p.OldestDue
		case !known || since.After(s.At):
			since = s.At
			c.neverDone[p.Process] = since
		}
		overdue[p.Process] = max(s.At.Sub(since), 0)
	}
	return overdue
}

// Describe implements prometheus.Collector.
func (c *fleetCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.up, c.machines, c.oldest, c.running, c.due, c.backingOff, c.overdue, c.discrepancies, c.stopped, c.restored, c.listener, c.full, c.missing, c.refused, c.refusing,
		c.unasked, c.unserved, c.unusable, c.paused, c.failures, c.failing,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *fleetCollector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	r := c.readings
	c.mu.Unlock()
	send := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	if r == nil {
		send(c.up, 0)
		return
	}
	one := map[bool]float64{true: 1}
	summary, now := r.summary, r.summary.At
	send(c.up, 1)
	for _, cause := range append(fleet.StopCauses(), unknownCause) {
		send(c.stopped, one[causeOf(r.summary.RecoveryHold) == cause], string(cause))
	}
	send(c.failing, float64(r.failing))
	send(c.restored, one[r.env.Restored != ""])
	send(c.listener, one[!r.env.ListenerUpSince.IsZero()])
	send(c.full, one[now.Before(r.env.ListenerFullUntil)])
	for _, role := range fleet.Roles() {
		if role != fleet.RoleAgentAPI && role != fleet.RoleOperatorAPI { // the former has its listener
			send(c.missing, one[slices.Contains(summary.Missing, role)], string(role))
		}
	}
	for _, p := range r.providers {
		send(c.unserved, one[len(p.Unserved) > 0], string(p.Name))
		send(c.unusable, float64(len(p.Unusable())), string(p.Name))
		send(c.paused, pausedFor(p, now).Seconds(), string(p.Name))
		for _, d := range p.Decisions {
			send(c.failures, float64(p.Failing(d.Process).Failures), string(p.Name), string(d.Process))
		}
	}
	send(c.discrepancies, float64(summary.Discrepancies))
	send(c.refused, float64(summary.HostKeyRefused.N))
	send(c.refusing, float64(summary.LoginRefused.N))
	send(c.unasked, float64(summary.Unasked.N))
	for _, state := range fleet.States() {
		send(c.machines, float64(summary.States[state]), string(state))
		if at, ok := r.since[state]; ok {
			send(c.oldest, max(now.Sub(at), 0).Seconds(), string(state))
		}
	}
	for _, p := range summary.Processes {
		name := string(p.Process)
		send(c.running, float64(p.Running), name)
		send(c.due, float64(p.Due), name)
		send(c.backingOff, float64(p.BackingOff), name)
		send(c.overdue, r.overdue[p.Process].Seconds(), name)
	}
}

// unknownCause is the cause of a stop that a control plane of another version has made.
const unknownCause fleet.StopCause = "unknown"

// causeOf returns why recovery is stopped; "": it is not.
func causeOf(h *fleet.RecoveryHold) fleet.StopCause {
	switch {
	case h == nil:
		return ""
	case slices.Contains(fleet.StopCauses(), h.Cause):
		return h.Cause
	}
	return unknownCause
}

// pausedFor returns for how long a provider has been paused; 0: it is not.
func pausedFor(p bmdb.ProviderRow, now time.Time) time.Duration {
	if p.Paused == nil {
		return 0
	}
	return max(now.Sub(p.Paused.At), 0)
}
