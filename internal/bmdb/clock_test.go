package bmdb_test

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestAClockThatWasSetBack: who opens the database is told, and passes over providers go on.
func TestAClockThatWasSetBack(t *testing.T) {
	t.Parallel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "bmdb")
	for _, by := range []time.Duration{10 * time.Second, 2 * time.Hour} {
		db, err := bmdb.Open(t.Context(), open(t, path), bmdb.Options{})
		must(err)
		name := fleet.ProviderName("p" + by.String())
		must(bmdbtest.Stock(t.Context(), db, name, []fleet.MachineID{fleet.NewMachineID()}, nil))
		closed(t, db)

		var log bytes.Buffer
		shift := &bmdbtest.Shift{Engine: open(t, path)}
		shift.Advance(-by)
		db, err = bmdb.Open(t.Context(), shift, bmdb.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		must(err)
		if back := by > time.Minute; strings.Contains(log.String(), "was set back") != back {
			t.Errorf("set back by %s: logged %q", by, log.String())
		}
		must(db.RegisterProvider(t.Context(), name, "test", 0))
		s, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: "a", Lease: time.Minute})
		must(err)
		claim, err := s.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessProvision, Providers: []fleet.ProviderName{name}, Limit: 1})
		must(err)
		if due := by > time.Minute; len(claim.Works) == 1 != due {
			t.Errorf("set back by %s: %d passes", by, len(claim.Works))
		}
		closed(t, db)
	}
}

// TestAClockThatIsSetBack: passes over providers go on in the processes that live through it, too.
func TestAClockThatIsSetBack(t *testing.T) {
	t.Parallel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	shift := &bmdbtest.Shift{Engine: open(t, filepath.Join(t.TempDir(), "bmdb"))}
	db, err := bmdb.Open(t.Context(), shift, bmdb.Options{})
	must(err)
	defer closed(t, db)
	must(bmdbtest.Stock(t.Context(), db, "p1", []fleet.MachineID{fleet.NewMachineID()}, nil))
	janitor := func() {
		for range 2 {
			_, err := db.RecomputeAgenda(t.Context(), 100)
			must(err)
		}
	}
	janitor()
	shift.Advance(-2 * time.Hour)
	janitor()
	s, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: "a", Lease: time.Minute})
	must(err)
	claim, err := s.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessProvision, Limit: 1})
	must(err)
	if len(claim.Works) != 1 {
		t.Error("no pass is due")
	}
}
