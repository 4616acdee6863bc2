package daemon_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/config"
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

// TestAStartTellsOfCaveats: they are no faults, but whoever runs it is told, once of each.
func TestAStartTellsOfCaveats(t *testing.T) {
	t.Parallel()
	ssh, unit := config.Install{Image: "os", SeenUp: "ssh"}, config.Install{Image: "os", SeenUp: "unit"}
	const unverified, silent = "database.url does not have the server verified", "Of providers[0].install, mind that the installed system counts as up when a unit of it calls"
	for _, test := range []struct {
		url     string
		install config.Install
		told    []string
	}{
		{"postgres://u@0.0.0.0:1/x", ssh, []string{unverified}},
		{"postgres://u@0.0.0.0:1/x", unit, []string{unverified, silent}},
		{"postgres://u@127.0.0.1:1/x", unit, []string{silent}},
		{"postgres://u@127.0.0.1:1/x", ssh, nil},
	} {
		c, log := settings(t), strings.Builder{}
		c.Database.URL, c.Database.Path = test.url, ""
		c.Images = []config.Image{{Name: "os", URL: "https://i.example/os.raw", FirstBoot: fleet.FirstBootNoCloud}}
		c.Providers[0].Install = &test.install
		d, err := daemon.Open(t.Context(), c, daemon.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err == nil {
			t.Fatalf("%s: opened, %v", test.url, d.Close())
		}
		const line = `level=WARN msg="the configuration has a caveat" caveat=`
		if got := strings.Count(log.String(), line); got != len(test.told) {
			t.Errorf("%s: %d are told, want %d:\n%s", test.url, got, len(test.told), &log)
		}
		for _, want := range test.told {
			if !strings.Contains(log.String(), want) {
				t.Errorf("%s: %q is not told:\n%s", test.url, want, &log)
			}
		}
	}
}
