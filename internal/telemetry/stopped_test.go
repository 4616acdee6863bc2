package telemetry_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/telemetry"
)

// TestWhatIsStoppedIsSeen: what waits for a person's word is a metric, so that somebody is called,
// and why recovery is stopped says how soon.
func TestWhatIsStoppedIsSeen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "bmdb")
	seen := func(act func(db *bmdb.DB)) string {
		t.Helper()
		db, err := bmdb.Open(t.Context(), sqlitetest.Open(t, path, sqlite.Options{Logger: discard}), bmdb.Options{Logger: discard})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		act(db)
		m := telemetry.New("v1")
		m.Fleet(db, discard)
		text, is := scrape(t, m), regexp.MustCompile(`(?m)^ironherd_(?:database_restored|recovery_stopped\{.*\}) 1$`)
		if n := strings.Count(text, "\nironherd_recovery_stopped{"); n != len(fleet.StopCauses())+1 {
			t.Errorf("%d causes are told", n)
		}
		return strings.Join(is.FindAllString(text, -1), ", ")
	}
	nothing := func(*bmdb.DB) {}
	if got := seen(nothing); got != "" {
		t.Errorf("nothing is stopped: %s", got)
	}
	stop := func(db *bmdb.DB) {
		if err := db.HoldRecovery(t.Context(), "anna", nil, "a switch"); err != nil {
			t.Error(err)
		}
	}
	if got := seen(stop); got != `ironherd_recovery_stopped{cause="asked"} 1` {
		t.Errorf("recovery is stopped: %s", got)
	}
	for cause, shown := range map[string]string{
		string(fleet.StopSilence): "silence", string(fleet.StopGrace): "grace", string(fleet.StopBudget): "budget", "": "unknown", "flood": "unknown",
	} {
		engine := sqlitetest.Open(t, path, sqlite.Options{Logger: discard})
		_, err := bmdb.Exec(t.Context(), engine, "UPDATE recovery_hold SET cause = $1", cause)
		if closed := engine.Close(); err != nil || closed != nil {
			t.Fatal(err, closed)
		}
		if got := seen(nothing); got != `ironherd_recovery_stopped{cause="`+shown+`"} 1` {
			t.Errorf("stopped for %q: %s", cause, got)
		}
	}
	if err := os.Remove(path + ".identity"); err != nil {
		t.Fatal(err)
	}
	if got := seen(nothing); !strings.HasPrefix(got, "ironherd_database_restored 1, ironherd_recovery_stopped{") {
		t.Errorf("the database looks copied: %s", got)
	}
}
