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
