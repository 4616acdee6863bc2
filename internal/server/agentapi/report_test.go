package agentapi_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server/agentapi"
)

// TestReportThatTheDatabaseDoesNotKnow: after a database was restored, an agent may report what it
// was never asked for. It is acknowledged, so that the agent goes on, and the log tells it.
func TestReportThatTheDatabaseDoesNotKnow(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil)
	m := h.machines(1, image())[0]
	log := &lines{}
	h.must(h.stop())
	h.api = agentapi.New(h.db, h.config, agentapi.Options{Logger: slog.New(slog.NewTextHandler(log, nil)), Certificates: h.certificates})
	h.start()
	client := h.dial(m.key)
	beat := m.withReport()
	beat.InstallReport = &agentv1.InstallReport{InstallGeneration: 1, Attempt: 2, Error: "no disk fits"}
	order := h.heartbeat(client, beat).GetInstallRequest() // it is handed out in the same answer
	if order.GetInstallGeneration() != 1 || order.GetAttempt() != 1 {
		t.Fatalf("handed out %v", order)
	}
	again := last(m.beat(), order)
	again.InstallReport = &agentv1.InstallReport{InstallGeneration: 7, Attempt: 1, Ok: true}
	h.heartbeat(client, again)
	for _, want := range []string{"install_generation=1 attempt=2 ok=false error=\"no disk fits\"", "install_generation=7 attempt=1 ok=true"} {
		if log.with("machine="+string(m.id)+" "+want) != 1 {
			t.Errorf("the log does not have %s: %q", want, log.all)
		}
	}
	if r := h.record(m); r.InstallReport != nil {
		t.Errorf("recorded %+v", r.InstallReport)
	}
}

// TestHardwareThatOnlyGotOlder: the next agent of a machine reports other temperatures and hours.
// The report is stored, and no change of the hardware is told.
func TestHardwareThatOnlyGotOlder(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil)
	m := h.machines(1, nil)[0]
	client := h.dial(m.key)
	for i, c := range []struct {
		health  *agentv1.Health
		changes int
	}{
		{&agentv1.Health{Passed: true, TemperatureCelsius: 40, PowerOnHours: 100}, 0},
		{&agentv1.Health{Passed: true, TemperatureCelsius: 50, PowerOnHours: 101}, 0},
		{&agentv1.Health{Passed: true, TemperatureCelsius: 50, PowerOnHours: 102, MediaErrors: 1}, 1},
	} {
		beat := m.beat()
		beat.HardwareReport = &agentv1.HardwareReport{BlockDevices: []*agentv1.BlockDevice{{Name: "sda", Health: c.health}}}
		h.heartbeat(client, beat)
		stored, err := h.db.HardwareReport(t.Context(), m.id)
		h.must(err)
		var report agentv1.HardwareReport
		h.must(proto.Unmarshal(stored, &report))
		if !proto.Equal(&report, beat.HardwareReport) {
			t.Errorf("report %d: stored is %v", i, &report)
		}
		if changes := h.details(m, fleet.EventHardwareChanged); len(changes) != c.changes {
			t.Errorf("report %d: changes %q", i, changes)
		}
	}
}

// TestReportThatIsNotCommitted is never acknowledged, whatever kept it from being committed.
func TestReportThatIsNotCommitted(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"the database is closed":  fleet.Errorf(fleet.KindConflict, "the database is closed"),
		"the writer was given up": context.Canceled, // by the engine: the call itself goes on
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine := &outage{Engine: sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discard})}
			h := newFixtureOn(t, engine, nil)
			m := h.machines(1, image())[0]
			client := h.dial(m.key)
			report := last(m.beat(), h.heartbeat(client, m.withReport()).GetInstallRequest())
			report.InstallReport = &agentv1.InstallReport{InstallGeneration: 1, Attempt: 1, Ok: true}
			engine.fail.Store(&err)
			if _, err := client.Heartbeat(t.Context(), report); status.Code(err) == codes.OK {
				t.Error("it was acknowledged")
			}
			engine.fail.Store(nil)
			h.heartbeat(client, report)
			if r := h.record(m).InstallReport; r == nil || !r.OK {
				t.Errorf("recorded %+v", r)
			}
		})
	}
}
