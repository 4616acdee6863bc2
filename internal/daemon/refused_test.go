package daemon_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/daemon"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/test/pgserver"
)

// TestWhoPostgresRefusesIsStartedAgain: a role, a password or a database may be about to be
// replaced, which a start cannot know. Whoever repairs a database wants a verdict.
func TestWhoPostgresRefusesIsStartedAgain(t *testing.T) {
	t.Parallel()
	server, err := pgserver.Start(t.Context(), pgserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	for name, url := range map[string]string{
		"no such database": server.URL("nosuch"),
		"no such role":     strings.Replace(server.URL("postgres"), pgserver.User+"@", "nobody@", 1),
	} {
		c := settings(t)
		c.Database.URL, c.Database.Path = url, ""
		_, verdict := daemon.CheckDatabase(t.Context(), c)
		if fleet.KindOf(verdict) != fleet.KindInvalid {
			t.Errorf("%s: a check says %s: %v", name, fleet.KindOf(verdict), verdict)
		}
		d, err := daemon.Open(t.Context(), c, daemon.Options{})
		switch {
		case err == nil:
			t.Errorf("%s: opened, %v", name, d.Close())
		case fleet.KindOf(err) != fleet.KindTemporary || verdict == nil || err.Error() != verdict.Error():
			t.Errorf("%s: a start says %s: %v; a check: %v", name, fleet.KindOf(err), err, verdict)
		}
	}
}

// TestAStartTellsOfAServerThatNobodyVerifies: it is no fault, but whoever runs it is told.
func TestAStartTellsOfAServerThatNobodyVerifies(t *testing.T) {
	t.Parallel()
	for url, told := range map[string]int{"postgres://u@0.0.0.0:1/x": 1, "postgres://u@127.0.0.1:1/x": 0} {
		c, log := settings(t), strings.Builder{}
		c.Database.URL, c.Database.Path = url, ""
		d, err := daemon.Open(t.Context(), c, daemon.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err == nil {
			t.Fatalf("%s: opened, %v", url, d.Close())
		}
		if got := strings.Count(log.String(), `level=WARN msg="mind how the database is reached" caveat="database.url does not have the server verified`); got != told {
			t.Errorf("%s: told %d times, want %d:\n%s", url, got, told, &log)
		}
	}
}
