package agentapi_test

import (
	"context"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
)

// TestWhatAFailoverHasLostIsRecordedAgain: a server remembers of whom it has committed the first
// words. When the database looks restored, that may be lost. Each agent is told once to call again,
// so that it reports its hardware again, too; also one that this server does not know yet.
func TestWhatAFailoverHasLostIsRecordedAgain(t *testing.T) {
	t.Parallel()
	engine := sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discard})
	h := newFixtureOn(t, engine, nil)
	hosts := h.machines(2, nil)
	beat := hosts[0].beat()
	beat.HardwareReport = report()
	h.heartbeat(h.dial(hosts[0].key), beat)
	h.must(h.stop())
	h.must(engine.Update(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
		for _, lost := range []string{
			"DELETE FROM fact_agent_seen", "DELETE FROM fact_hardware", "DELETE FROM hardware_report",
			"INSERT INTO restored (id, at, evidence) VALUES (1, 1, 'promoted')",
		} {
			if _, err := tx.ExecContext(ctx, lost); err != nil {
				return err
			}
		}
		return nil
	}))
	h.start()
	for _, m := range hosts {
		client := h.dial(m.key)
		if _, err := client.Heartbeat(t.Context(), m.beat()); status.Code(err) != codes.Aborted {
			t.Errorf("the first call after the failover: %v", err)
		}
		h.heartbeat(client, m.beat())
		if r := h.record(m); r.AgentSeen == nil {
			t.Error("the first words are not recorded again")
		}
		beat := m.beat()
		beat.HardwareReport = report()
		h.heartbeat(client, beat)
		if r := h.record(m); r.Hardware == nil {
			t.Error("the hardware is not recorded again")
		}
	}
}

// TestWhoIsNotKnownIsNotRefusedForGood: where the database may have lost the start of an agent, the
// agent is told to call again, until a person has accepted the database. One in memory restarts its
// host when it is refused for long.
func TestWhoIsNotKnownIsNotRefusedForGood(t *testing.T) {
	t.Parallel()
	engine := sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discard})
	h := newFixtureOn(t, engine, nil)
	m := h.machines(1, nil)[0]
	lost := m.beat()
	lost.TakeoverGeneration++ // of a start that the backup does not have
	answers := func(want codes.Code) {
		t.Helper()
		h.start()
		if _, err := h.dial(m.key).Heartbeat(t.Context(), lost); status.Code(err) != want {
			t.Errorf("answered with %v, not with %s", err, want)
		}
		h.must(h.stop())
	}
	h.must(h.stop())
	h.must(engine.Update(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO restored (id, at, evidence) VALUES (1, 1, 'promoted')")
		return err
	}))
	answers(codes.Unavailable)
	h.must(h.db.AcceptRestore(t.Context(), "operator"))
	answers(codes.PermissionDenied)
}
