package agentapi_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server/agentapi"
)

// TestRepetitionCostsNoStatement, also where agents speak less often than identities are rechecked.
func TestRepetitionCostsNoStatement(t *testing.T) {
	t.Parallel()
	h := newFixture(t, func(c *agentapi.Config, _ *fleet.Policy) { c.FlushInterval, c.Recheck = time.Hour, 1 })
	const agents, beats = 5, 40
	var group sync.WaitGroup
	var clients []agentv1.AgentCallbackClient
	hosts := h.machines(agents, nil)
	for _, m := range hosts {
		client := h.dial(m.key)
		clients = append(clients, client)
		h.known(client, m)
	}
	kinds := []string{"agent", "agent spoke", "flush heartbeats", "look for an install", "hand out install"}
	before := h.counter.of(kinds...)
	if before == 0 {
		t.Fatal("no statements are counted")
	}
	for i, m := range hosts {
		group.Go(func() {
			for range beats {
				if resp, err := clients[i].Heartbeat(t.Context(), m.beat()); err != nil || resp.GetNextIntervalMs() <= 0 {
					t.Errorf("%v, %v", resp, err)
				}
			}
		})
	}
	group.Wait()
	if n := h.counter.of(kinds...) - before; n != 0 {
		t.Errorf("%d heartbeats cost %d statements", agents*beats, n)
	}
	at := h.record(hosts[0]).AgentSeen.LastAt
	h.must(h.stop()) // writes what is in memory, in one batch
	// The embedded engine runs a statement for each.
	if n := h.counter.of("flush heartbeats"); n != agents {
		t.Errorf("the flush cost %d statements for %d agents", n, agents)
	}
	if now := h.record(hosts[0]).AgentSeen.LastAt; !now.After(at) {
		t.Errorf("last seen stays at %s", now)
	}
}

// TestNewsAreCommittedAtOnce is rule 9 and I8: first words and a changed boot ID are in the
// database when they are answered, although nothing is flushed.
func TestNewsAreCommittedAtOnce(t *testing.T) {
	t.Parallel()
	h := newFixture(t, func(c *agentapi.Config, _ *fleet.Policy) { c.FlushInterval = time.Hour })
	m := h.machines(1, nil)[0]
	client := h.dial(m.key)
	h.heartbeat(client, m.beat())
	r := h.record(m)
	if r.AgentSeen == nil || r.AgentSeen.BootID != "boot-1" || r.AgentSeen.TakeoverGeneration != m.generation {
		t.Fatalf("the first heartbeat is not a fact: %+v", r.AgentSeen)
	}
	again := m.beat()
	again.BootId = "boot-2"
	h.heartbeat(client, again)
	if got := h.record(m).AgentSeen.BootID; got != "boot-2" {
		t.Errorf("a changed boot ID is not a fact: %s", got)
	}
}

// An agent that says another boot ID each time writes no history without end, and is heard all the
// same; the boot ID that it stays with becomes a fact.
func TestBootIDsAreLimited(t *testing.T) {
	t.Parallel()
	h := newFixture(t, func(c *agentapi.Config, _ *fleet.Policy) {
		c.CallRate = fleet.Rate{Every: time.Microsecond, Burst: 1000}
		c.ReportRate = fleet.Rate{Every: time.Hour, Burst: 3}
	})
	m := h.machines(1, nil)[0]
	client := h.dial(m.key)
	beat := m.beat()
	h.heartbeat(client, beat)
	before := h.counter.of("agent spoke")
	for i := range 50 {
		beat.BootId = fmt.Sprintf("boot-%d", i)
		h.heartbeat(client, beat)
	}
	history, err := h.db.History(t.Context(), m.id, 1000)
	h.must(err)
	if n := h.counter.of("agent spoke") - before; n == 0 || len(history) > 20 {
		t.Errorf("%d statements, %d rows of history", n, len(history))
	}
	if got := h.record(m).AgentSeen.BootID; got != "boot-2" {
		t.Errorf("the boot ID is %s", got)
	}
}

// tooMany are more disks than a report may have, and fewer than would not be decoded.
var tooMany = slices.Repeat([]*agentv1.BlockDevice{{Name: "nvme0n1", Model: "ACME 4000"}}, 5000)

// TestBootIDsBesideRefusedReportsAreLimited: a silence ends with the first heartbeat that is
// committed, also where what comes with it is refused.
func TestBootIDsBesideRefusedReportsAreLimited(t *testing.T) {
	t.Parallel()
	h := newFixture(t, func(c *agentapi.Config, _ *fleet.Policy) { c.ReportRate = fleet.Rate{Every: time.Hour, Burst: 3} })
	m := h.machines(1, nil)[0]
	client := h.dialNamed(string(m.id), m.key) // known before its first call, which is large
	for i := range 50 {
		beat := m.beat()
		beat.BootId = fmt.Sprintf("boot-%d", i)
		beat.HardwareReport = &agentv1.HardwareReport{BlockDevices: tooMany}
		if _, err := client.Heartbeat(t.Context(), beat); err == nil {
			t.Fatal("a report that is too large is accepted")
		}
	}
	if n := h.counter.took("agent spoke"); n == 0 || n > 3 {
		t.Errorf("%d boot IDs were committed", n)
	}
}

// TestReturnFromSilenceIsCommittedAtOnce is rule 9: silence ends in the database, not in memory.
func TestReturnFromSilenceIsCommittedAtOnce(t *testing.T) {
	t.Parallel()
	h := newFixture(t, func(c *agentapi.Config, p *fleet.Policy) {
		impatient(c, p)
		c.FlushInterval = time.Hour
	})
	m := h.machines(1, nil)[0]
	client := h.dial(m.key)
	h.heartbeat(client, m.beat())
	before := h.counter.of("agent spoke")
	h.heartbeat(client, m.beat())
	if h.counter.of("agent spoke") == before {
		t.Error("after more than two promised intervals of silence, nothing was committed")
	}
}

func TestHardwareReport(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil)
	m := h.machines(1, nil)[0]
	client := h.dial(m.key)
	req := m.beat()
	req.HardwareReport = report()
	h.heartbeat(client, req)
	stored, err := h.db.HardwareReport(t.Context(), m.id)
	h.must(err)
	var got agentv1.HardwareReport
	h.must(proto.Unmarshal(stored, &got))
	if got.GetSystem().GetSerial() != "S\ufffd1\ufffd[31m" || got.GetSystem().GetVendor() != "ACME" {
		t.Errorf("stored as %q", got.GetSystem().GetSerial())
	}
	for name, spoil := range map[string]func(*agentv1.HeartbeatRequest){
		"too many disks":    func(r *agentv1.HeartbeatRequest) { r.HardwareReport.BlockDevices = tooMany },
		"too many bytes":    func(r *agentv1.HeartbeatRequest) { r.HardwareReport.Warnings = []string{strings.Repeat("x", 600<<10)} },
		"no boot ID":        func(r *agentv1.HeartbeatRequest) { r.BootId = "" },
		"strange boot ID":   func(r *agentv1.HeartbeatRequest) { r.BootId = "a\nb" },
		"negative":          func(r *agentv1.HeartbeatRequest) { r.LastInstallAttempt = -1 },
		"report of nothing": func(r *agentv1.HeartbeatRequest) { r.InstallReport = &agentv1.InstallReport{} },
		"both good and bad": func(r *agentv1.HeartbeatRequest) {
			r.InstallReport = &agentv1.InstallReport{InstallGeneration: 1, Attempt: 1, Ok: true, Error: "bad"}
		},
		"impossible progress": func(r *agentv1.HeartbeatRequest) { r.InstallProgress = &agentv1.InstallProgress{BytesDone: -1} },
	} {
		req := m.beat()
		req.HardwareReport = report()
		spoil(req)
		_, err := client.Heartbeat(t.Context(), req)
		if c := status.Code(err); c != codes.InvalidArgument && c != codes.FailedPrecondition {
			t.Errorf("%s: %v", name, err)
		}
	}
	h.heartbeat(client, m.beat()) // it hurt only itself, and not for long
}

func TestOneAgentHurtsOnlyItself(t *testing.T) {
	t.Parallel()
	h := newFixture(t, func(c *agentapi.Config, _ *fleet.Policy) { c.CallRate = fleet.Rate{Every: time.Hour, Burst: 5} })
	hosts := h.machines(2, nil)
	loud, quiet := h.dial(hosts[0].key), h.dial(hosts[1].key)
	refused := 0
	for range 10 {
		if _, err := loud.Heartbeat(t.Context(), hosts[0].beat()); status.Code(err) == codes.Aborted {
			refused++
		}
	}
	if refused != 5 {
		t.Errorf("%d of 10 calls were refused", refused)
	}
	if _, err := h.dial(hosts[0].key).Heartbeat(t.Context(), hosts[0].beat()); status.Code(err) != codes.Aborted {
		t.Errorf("another connection gets around the limit: %v", err)
	}
	h.heartbeat(quiet, hosts[1].beat())
	huge := hosts[1].beat()
	huge.AgentVersion = strings.Repeat("x", 2<<20)
	if _, err := quiet.Heartbeat(t.Context(), huge); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a huge message: %v", err)
	}
}

// TestOneAgentHasFewConnections: whoever has the key of one agent, and holds on to more connections
// than there may be, keeps no other agent out, and not even that one. However the certificate
// spells the machine, it is one.
func TestOneAgentHasFewConnections(t *testing.T) {
	t.Parallel()
	const connections = 20
	h := newFixture(t, func(c *agentapi.Config, _ *fleet.Policy) { c.MaxConnections = connections })
	hosts := h.machines(2, nil)
	for i := range 2 * connections {
		//nolint:gosec // whom it trusts does not matter
		config := &tls.Config{
			InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
			Certificates: []tls.Certificate{selfSigned(t, strings.Repeat(" ", i)+string(hosts[0].id), hosts[0].key)},
		}
		conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", h.address)
		if err != nil {
			continue
		}
		t.Cleanup(func() { conn.Close() })
		h.must(conn.SetDeadline(time.Now().Add(30 * time.Second)))
		unfinished(conn, 1, 256<<10) // that is more than is read of a stranger
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for i, m := range hosts {
		if _, err := h.dialNamed(string(m.id), m.key).Heartbeat(ctx, m.beat()); err != nil {
			t.Errorf("agent %d: %v", i, err)
		}
	}
}

func TestReportsAreLimited(t *testing.T) {
	t.Parallel()
	h := newFixture(t, func(c *agentapi.Config, _ *fleet.Policy) { c.ReportRate = fleet.Rate{Every: time.Hour, Burst: 2} })
	m := h.machines(1, nil)[0]
	client := h.dial(m.key)
	req := m.beat()
	req.HardwareReport = report()
	h.heartbeat(client, req)
	h.heartbeat(client, req)
	if _, err := client.Heartbeat(t.Context(), req); status.Code(err) != codes.Aborted {
		t.Errorf("a third report: %v", err)
	}
	h.heartbeat(client, m.beat())
}

// An agent that has to send its report again is heard all the same.
func TestLimitedReportsAreHeard(t *testing.T) {
	t.Parallel()
	h := newFixture(t, func(c *agentapi.Config, _ *fleet.Policy) {
		c.FlushInterval, c.ReportRate = time.Hour, fleet.Rate{Every: time.Hour, Burst: 1}
	})
	m := h.machines(1, nil)[0]
	client, req := h.dial(m.key), m.beat()
	req.HardwareReport = report()
	h.heartbeat(client, req)
	at := h.record(m).AgentSeen.LastAt
	if _, err := client.Heartbeat(t.Context(), req); status.Code(err) != codes.Aborted {
		t.Errorf("a second report: %v", err)
	}
	h.must(h.stop()) // writes what is in memory
	if now := h.record(m).AgentSeen.LastAt; !now.After(at) {
		t.Errorf("last seen stays at %s", now)
	}
}

// TestMalformedHeartbeatsAreLoggedSparsely: an agent that goes on sending them fills no log.
func TestMalformedHeartbeatsAreLoggedSparsely(t *testing.T) {
	t.Parallel()
	h := newFixture(t, func(c *agentapi.Config, _ *fleet.Policy) { c.ReportRate = fleet.Rate{Every: time.Hour, Burst: 2} })
	hosts := h.machines(2, nil)
	log := &lines{}
	h.must(h.stop())
	h.api = agentapi.New(h.db, h.config, agentapi.Options{Logger: slog.New(slog.NewTextHandler(log, nil)), Certificates: h.certificates})
	h.start()
	client := h.dial(hosts[0].key)
	malformed := hosts[0].beat()
	malformed.BootId = ""
	answers := map[codes.Code]int{}
	for range 50 {
		_, err := client.Heartbeat(t.Context(), malformed)
		answers[status.Code(err)]++
	}
	if answers[codes.InvalidArgument] != 2 || answers[codes.Aborted] != 48 {
		t.Errorf("answered %v", answers)
	}
	if n := log.with(string(hosts[0].id)); n != 2 {
		t.Errorf("%d lines of the log are about it, want 2", n)
	}
	// Another machine has a quota of its own.
	malformed = hosts[1].beat()
	malformed.BootId = ""
	if _, err := h.dial(hosts[1].key).Heartbeat(t.Context(), malformed); status.Code(err) != codes.InvalidArgument || log.with(string(hosts[1].id)) != 1 {
		t.Errorf("another machine: %v, %d lines", err, log.with(string(hosts[1].id)))
	}
	h.heartbeat(client, hosts[0].beat())
}

// lines are the lines of a log.
type lines struct {
	mu  sync.Mutex
	all []string
}

// Write implements io.Writer; slog writes a line with each call.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(p))
	return len(p), nil
}

// with returns how many lines hold a text.
func (l *lines) with(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func TestIntervalIsPromised(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil)
	m := h.machines(1, nil)[0]
	client := h.dial(m.key)
	for range 20 {
		next := time.Duration(h.heartbeat(client, m.beat()).GetNextIntervalMs()) * time.Millisecond
		if next > 30*time.Second || next < 24*time.Second {
			t.Errorf("asked for the next heartbeat in %s", next)
		}
	}
	env, err := h.db.Environment(t.Context())
	h.must(err)
	if env.PromisedInterval != 30*time.Second || env.ListenerUpSince.IsZero() {
		t.Errorf("the BMDB was told %s, up since %s", env.PromisedInterval, env.ListenerUpSince)
	}
}
