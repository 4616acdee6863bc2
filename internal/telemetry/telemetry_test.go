package telemetry_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/telemetry"
)

var update = flag.Bool("update", false, "write what is generated")

var discard = slog.New(slog.DiscardHandler)

func scrape(t *testing.T, m *telemetry.Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// observed is metrics in which everything has happened once.
func observed(t *testing.T) (*telemetry.Metrics, *bmdb.DB) {
	t.Helper()
	m := telemetry.New("v1")
	engine := sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discard})
	db, err := bmdb.Open(t.Context(), engine, bmdb.Options{Logger: discard, Observer: m.Database()})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.RegisterProvider(t.Context(), "lab", "static", 1); err != nil {
		t.Fatal(err)
	}
	createMachine(t, db)
	m.Fleet(db, discard)
	m.Database().Outcome(fleet.ProcessAgentStart, "finished", time.Second)
	m.Provider("lab").Call("GET /devices/{id}", 200, time.Second)
	m.Provider("lab").Call("GET /devices/{id}", 0, time.Second)
	m.Shepherd().Claimed(fleet.ProcessAgentStart, 3, time.Millisecond, nil)
	m.Shepherd().Started(fleet.ProcessAgentStart)
	m.Shepherd().Started(fleet.ProcessAgentStart)
	m.Shepherd().Ended(fleet.ProcessAgentStart, shepherd.ResultFinished, time.Second)
	m.JanitorDone("check", 2, time.Second, errors.New("no"))
	m.JanitorDone("watch-silence", 0, time.Second, errors.New("no"))
	m.JanitorDone("watch-silence", 0, time.Second, nil)
	m.AgentAPI().AgentCall("Heartbeat", "OK", time.Millisecond)
	m.AgentAPI().AgentReport("hardware")
	m.AgentAPI().AgentFlush(9, time.Millisecond, nil)
	m.AgentAPI().AgentRefused("too_late")
	m.OperatorRefused("too_late")
	m.Probed(fleet.SeenByUnit, "unanswered")
	m.RecoveryStep(fleet.RungReboot, "done")
	m.ConnectedAgents(func() int { return 4 })
	m.Tokens("metrics", func(time.Time) bool { return true })
	m.TokensMissing(func(time.Time) bool { return true })
	m.Writable(func() bool { return false })
	m.DatabaseFaults(func() int { return 3 })
	m.Certificate("agent-api", func() time.Time { return time.Unix(1800000000, 0) }, func(time.Time) bool { return true },
		func(time.Time) string { return "it is of another host" })
	m.Certificate("operator-api", func() time.Time { return time.Unix(1800000000, 0) }, func(time.Time) bool { return false },
		func(time.Time) string { return "" })
	return m, db
}

// createMachine leaves one in the state creating, and the provider's next pass in backoff.
func createMachine(t *testing.T, db *bmdb.DB) {
	t.Helper()
	session, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: "test", Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	claim, err := session.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessProvision, Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	var opened []fleet.Intent
	intent := bmdb.NewIntent{Capacity: "slot", Machine: fleet.NewMachineID(), Token: fleet.NewToken()}
	failure := bmdb.Failure{Cause: "not now", Backoff: fleet.Backoff{Initial: time.Hour}}
	if err := claim.Works[0].Fail(t.Context(), failure, bmdb.OpenIntents(0, []bmdb.NewIntent{intent}, &opened), bmdb.SetPassResult("2 unusable\nhost b\nhost c")); err != nil {
		t.Fatal(err)
	}
}

func TestMetricValues(t *testing.T) {
	t.Parallel()
	m, db := observed(t)
	defer db.Close()
	text := scrape(t, m)
	for _, line := range []string{
		`ironherd_fleet_up 1`, `ironherd_machines{state="installed"} 0`, `ironherd_machines{state="creating"} 1`,
		`ironherd_recovery_stopped{cause="asked"} 0`, `ironherd_database_restored 0`, `ironherd_installs_failing 0`, `ironherd_process_due{process="update"} 1`, `ironherd_process_backing_off{process="provision"} 1`, `ironherd_agents 4`,
		`ironherd_provider_calls_total{endpoint="GET /devices/{id}",provider="lab",status="200"} 1`,
		`ironherd_provider_calls_total{endpoint="GET /devices/{id}",provider="lab",status="none"} 1`,
		`ironherd_claimed_work_total{process="agent-start"} 3`, `ironherd_work_running{process="agent-start"} 1`,
		`ironherd_work_total{process="agent-start",result="finished"} 1`, `ironherd_janitor_runs_total{duty="check",outcome="error"} 1`,
		`ironherd_janitor_duty_failing{duty="check"} 1`, `ironherd_janitor_duty_failing{duty="watch-silence"} 0`,
		`ironherd_probes_total{by="unit",result="unanswered"} 1`,
		`ironherd_certificate_expires_timestamp_seconds{listener="agent-api"} 1.8e+09`, `ironherd_certificate_expires_soon{listener="agent-api"} 1`,
		`ironherd_certificate_faulty{listener="agent-api"} 1`, `ironherd_certificate_faulty{listener="operator-api"} 0`,
		`ironherd_operations_total{operation="release",result="failed"} 0`, `ironherd_tokens_missing 1`,
		`ironherd_tokens_expire_soon{role="metrics"} 1`, `ironherd_database_writable 0`, `ironherd_database_faults 3`, `ironherd_agent_listener_up 0`, `ironherd_role_missing{role="janitor"} 0`,
		`ironherd_provider_failures{process="provision",provider="lab"} 1`, `ironherd_provider_failures{process="update",provider="lab"} 0`,
		`ironherd_provider_unserved{provider="lab"} 0`, `ironherd_provider_entries_unusable{provider="lab"} 2`,
		`ironherd_agent_heartbeats_flushed_total{outcome="ok"} 9`, `ironherd_agent_calls_total{code="OK",method="Heartbeat"} 1`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("missing: %s", line)
		}
	}
	if !regexp.MustCompile(`ironherd_state_oldest_seconds\{state="creating"\} [0-9]`).MatchString(text) {
		t.Error("no time in state")
	}
	if !regexp.MustCompile(`ironherd_database_statements_total\{kind="\w[^"]*"\} [1-9]`).MatchString(text) {
		t.Error("no statements are counted")
	}
}

// TestWhoIsMissingIsSeen: that nobody has a role, that no listener is up, and that a provider fails
// although it is being tried at this very moment, are metrics, so that somebody is called.
func TestWhoIsMissingIsSeen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		db, err := bmdb.Open(t.Context(), sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discard}), bmdb.Options{Logger: discard})
		must(err)
		t.Cleanup(func() { must(db.Close()) })
		must(db.RegisterProvider(t.Context(), "lab", "static", 1))
		m := telemetry.New("v1")
		m.Fleet(db, discard)
		shown := func(when string, want ...string) {
			t.Helper()
			time.Sleep(10 * time.Second) // so that the last reading is not good any more
			text := scrape(t, m)
			for _, line := range want {
				if !strings.Contains(text, "\n"+line+"\n") {
					t.Errorf("%s: missing: %s", when, line)
				}
			}
		}
		time.Sleep(5 * time.Minute)
		shown("nobody is there", `ironherd_role_missing{role="janitor"} 1`, `ironherd_role_missing{role="provisioner"} 1`,
			`ironherd_role_missing{role="recoverer"} 0`, `ironherd_agent_listener_up 0`)
		for _, component := range []string{"janitor", "provision"} {
			_, err = db.StartSession(t.Context(), bmdb.SessionOptions{Component: component, Lease: time.Hour})
			must(err)
		}
		must(db.ListenerAlive(t.Context(), time.Minute, time.Second))
		shown("somebody is there", `ironherd_role_missing{role="janitor"} 0`, `ironherd_role_missing{role="provisioner"} 0`, `ironherd_agent_listener_up 1`,
			`ironherd_agent_listener_full 0`)
		must(db.ListenerFull(t.Context(), 4*time.Minute))
		shown("there is no room", `ironherd_agent_listener_full 1`)
		time.Sleep(5 * time.Minute)
		shown("there is room again", `ironherd_agent_listener_full 0`)
		session, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: "provision", Lease: time.Hour})
		must(err)
		for n := range 3 {
			claim, err := session.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessProvision, Limit: 1})
			must(err)
			shown("while it is tried", fmt.Sprintf(`ironherd_provider_failures{process="provision",provider="lab"} %d`, n),
				`ironherd_process_backing_off{process="provision"} 0`)
			must(claim.Works[0].Fail(t.Context(), bmdb.Failure{Cause: "no answer", Backoff: fleet.Backoff{Initial: time.Minute}}))
			time.Sleep(2 * time.Minute)
		}
	})
}

// TestWhatWasNeverDoneIsDueSinceItIsKnown: a provider that had no pass yet is due since ever, and
// would be overdue for more than fifty years. Once it is known here, it waits like everything else.
func TestWhatWasNeverDoneIsDueSinceItIsKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		shift := &bmdbtest.Shift{Engine: sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discard})}
		db, err := bmdb.Open(t.Context(), shift, bmdb.Options{Logger: discard})
		must(err)
		t.Cleanup(func() { must(db.Close()) })
		m := telemetry.New("v1")
		m.Fleet(db, discard)
		overdue := func() time.Duration {
			t.Helper()
			text := scrape(t, m)
			told := regexp.MustCompile(`(?m)^ironherd_process_overdue_seconds\{process="provision"\} (.*)$`).FindStringSubmatch(text)
			if told == nil {
				t.Fatalf("it is not told in %s", text)
			}
			seconds, err := strconv.ParseFloat(told[1], 64)
			must(err)
			return time.Duration(seconds * float64(time.Second))
		}
		after := func(when string, wait, want time.Duration) {
			t.Helper()
			time.Sleep(wait)
			if got := overdue(); got < want || got > want+time.Minute {
				t.Errorf("%s: overdue for %s, want %s", when, got, want)
			}
		}
		session, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: "provision", Lease: 1000 * time.Hour})
		must(err)
		pass := func() {
			t.Helper()
			claim, err := session.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessProvision, Limit: 1})
			must(err)
			must(claim.Works[0].Finish(t.Context(), bmdb.SetPassResult("nothing new")))
		}
		after("there is nothing", 0, 0)
		must(db.RegisterProvider(t.Context(), "lab", "static", 1))
		after("it is new", time.Hour, 0)
		after("it waits", time.Hour, time.Hour)
		pass()
		after("it had its pass", 10*time.Second, 0)
		after("the next one is late", time.Hour, 59*time.Minute)
		must(db.RegisterProvider(t.Context(), "other", "static", 1))
		after("another one is new", 10*time.Second, 0)
		after("that waits", time.Hour, time.Hour)
		shift.Advance(-30 * 24 * time.Hour)
		after("the clock was set back", 10*time.Second, 0)
		after("it waits still", time.Hour, time.Hour)
	})
}

// TestAPauseThatLastsIsSeen: it is a metric for how long a provider has been paused, so that
// somebody is called who has forgotten it.
func TestAPauseThatLastsIsSeen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, err := bmdb.Open(t.Context(), sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discard}), bmdb.Options{Logger: discard})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		m := telemetry.New("v1")
		m.Fleet(db, discard)
		shown := func(when, want string) {
			t.Helper()
			if text := scrape(t, m); !strings.Contains(text, "\nironherd_provider_paused_seconds{provider=\"lab\"} "+want+"\n") {
				t.Errorf("%s: want %s in\n%s", when, want, text)
			}
			time.Sleep(time.Hour)
		}
		if err := db.RegisterProvider(t.Context(), "lab", "static", 1); err != nil {
			t.Fatal(err)
		}
		shown("it is not paused", "0")
		if err := db.PauseProvider(t.Context(), "ada", "lab", "the bill"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		shown("it was paused a day ago", "86400")
		if err := db.ResumeProvider(t.Context(), "ada", "lab", "it is paid"); err != nil {
			t.Fatal(err)
		}
		shown("it goes on", "0")
	})
}

func TestTheRestIsServedWhenTheDatabaseIsNot(t *testing.T) {
	t.Parallel()
	m, db := observed(t)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	text := scrape(t, m)
	if !strings.Contains(text, "\nironherd_fleet_up 0\n") || strings.Contains(text, "ironherd_machines{") || !strings.Contains(text, "ironherd_agents 4") {
		t.Error("want ironherd_fleet_up 0, no machines, and the rest")
	}
}

func TestManyWhoAskReadOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, db := observed(t)
		defer db.Close()
		scrape(t, m)
		one := statements(t, m)
		for range 10 {
			scrape(t, m)
		}
		if again := statements(t, m); again != one {
			t.Errorf("statements went from %s to %s", one, again)
		}
	})
}

func statements(t *testing.T, m *telemetry.Metrics) string {
	t.Helper()
	line := regexp.MustCompile(`ironherd_database_statements_total\{kind="summary"\} (\d+)`).FindStringSubmatch(scrape(t, m))
	if line == nil {
		t.Fatal("no summary was read")
	}
	return line[1]
}

// TestATerminalActsOnNothingThatIsLogged: what a host says reaches the operator's terminal as text.
func TestATerminalActsOnNothingThatIsLogged(t *testing.T) {
	t.Parallel()
	const evil = "\x1b]0;owned\x07\x1b[2Jall is well\u009b2J\x7f\r\nfake line\xff"
	colours := regexp.MustCompile("\x1b\\[[0-9;]*m")
	for _, color := range []bool{true, false} {
		for name, value := range map[string]any{
			"a string":             evil,
			"one without a space":  "\x1b[2J",
			"one that was quoted":  "exit status 1: " + remote.Quote(evil),
			"an error":             errors.New(evil),
			"one of a quoted text": errors.New(remote.Quote(evil)),
			"strings":              []string{evil},
			"bytes":                []byte(evil),
		} {
			var out bytes.Buffer
			logger, err := telemetry.NewLogger(&out, telemetry.LogOptions{Terminal: true, Color: color})
			if err != nil {
				t.Fatal(err)
			}
			logger.With(slog.Any("before", value)).Info(evil, slog.Any("host", value), slog.Group("of", slog.Any("it", value)))
			line, _ := strings.CutSuffix(out.String(), "\n")
			for _, r := range colours.ReplaceAllString(line, "") {
				if !strconv.IsPrint(r) {
					t.Errorf("colour %t, %s: %q has %q", color, name, line, r)
					break
				}
			}
			if strings.Count(line, "2J") < 4 {
				t.Errorf("colour %t, %s: something is missing in %q", color, name, line)
			}
		}
	}
}

// TestATerminalActsOnNoJSON: and who reads the JSON has what was logged.
func TestATerminalActsOnNoJSON(t *testing.T) {
	t.Parallel()
	const evil = "\x1b]0;owned\x07\u009b2J\u009d0;x\u009c\x7f\u202eäöü 漢\U000e0041\r\nfake line \\"
	for name, value := range map[string]any{"text": evil, "err": errors.New(evil), "list": []string{evil}} {
		var out bytes.Buffer
		logger, err := telemetry.NewLogger(&out, telemetry.LogOptions{Format: "json", Terminal: true})
		if err != nil {
			t.Fatal(err)
		}
		logger.With(slog.Any("before", value)).Info(evil, slog.Any("it", value), slog.Int("count", 7))
		line, _ := strings.CutSuffix(out.String(), "\n")
		for _, r := range line {
			if !strconv.IsPrint(r) {
				t.Errorf("%s: %q has %q", name, line, r)
				break
			}
		}
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil || fields["msg"] != evil || !strings.Contains(fmt.Sprint(fields["it"], fields["before"]), evil) {
			t.Errorf("%s: %v, %q", name, err, fields)
		}
		if !strings.Contains(line, "äöü 漢") {
			t.Errorf("%s: letters are not to be read in %s", name, line)
		}
	}
}

func TestLogger(t *testing.T) {
	t.Parallel()
	failure := errors.Join(errors.New("one"), errors.New("two"))
	write := func(options telemetry.LogOptions) string {
		var out bytes.Buffer
		logger, err := telemetry.NewLogger(&out, options)
		if err != nil {
			t.Fatal(err)
		}
		logger.Debug("quiet")
		logger.Info("hello", slog.String("machine", "m"), slog.Duration("took", 1500*time.Millisecond), slog.Any("err", failure))
		return out.String()
	}
	var fields map[string]string
	if err := json.Unmarshal([]byte(write(telemetry.LogOptions{})), &fields); err != nil {
		t.Fatal(err)
	}
	if fields["msg"] != "hello" || fields["machine"] != "m" || fields["took"] != "1.5s" || fields["err"] != "one\ntwo" {
		t.Errorf("json: %v", fields)
	}
	text := write(telemetry.LogOptions{Format: "auto", Terminal: true})
	if strings.Count(text, "\n") != 1 || !strings.Contains(text, `err="one; two"`) || strings.Contains(text, "\x1b") {
		t.Errorf("text: %q", text)
	}
	if text := write(telemetry.LogOptions{Terminal: true, Color: true, Level: "debug"}); !strings.Contains(text, "\x1b[") || !strings.Contains(text, "quiet") {
		t.Errorf("in colour, with debug: %q", text)
	}
	if text := write(telemetry.LogOptions{Level: "error"}); text != "" {
		t.Errorf("below the level: %q", text)
	}
	for _, bad := range []telemetry.LogOptions{{Level: "loud"}, {Level: "info+2"}, {Format: "xml"}} {
		if _, err := telemetry.NewLogger(&bytes.Buffer{}, bad); fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
