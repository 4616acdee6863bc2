package agentapi

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestProgressOfAnAgentThatHasLeftIsNotTold: it may speak to another control plane, or be dead.
func TestProgressOfAnAgentThatHasLeftIsNotTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const interval = 30 * time.Second
		s := New(nil, DefaultConfig(), Options{})
		s.pace.set(interval, 1, 1)
		machine := fleet.NewMachineID()
		s.agents.heardAndCommitted(s.agents.remember(bmdb.AgentIdentity{Machine: machine}), &agentv1.InstallProgress{BytesDone: 5})
		time.Sleep(2 * interval)
		if _, installing := s.agents.dropSilent(forgetAfter, 2*interval); installing != 1 || s.Progress(machine).GetBytesDone() != 5 {
			t.Errorf("after two intervals %d install, and it is at %v", installing, s.Progress(machine))
		}
		time.Sleep(time.Second)
		left, installing := s.agents.dropSilent(forgetAfter, 2*interval)
		if left != 1 || installing != 0 || s.Progress(machine) != nil {
			t.Errorf("%d are left, %d install, and it is still at %v", left, installing, s.Progress(machine))
		}
	})
}

// TestLivenessThatCannotBeWrittenIsLoggedSparsely: it is tried again every second.
func TestLivenessThatCannotBeWrittenIsLoggedSparsely(t *testing.T) {
	t.Parallel()
	engine := sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: slog.New(slog.DiscardHandler)})
	db, err := bmdb.Open(t.Context(), engine, bmdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s := New(db, DefaultConfig(), Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	s.agents.heard(s.agents.remember(bmdb.AgentIdentity{Machine: fleet.NewMachineID()}), nil)
	for range 100 {
		s.flush(t.Context())
	}
	if n := strings.Count(log.String(), "cannot write the liveness"); n < 1 || n > 5 {
		t.Errorf("%d lines of a hundred failures: %s", n, log.String())
	}
}
