package fleetapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/token"
)

// What was seen on a running fleet: every call of the provider refused, work that nobody does, a
// machine that does not get on, and the page said that nothing needs anybody.
func TestConcerns(t *testing.T) {
	t.Parallel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	engine := sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{})
	db, err := bmdb.Open(t.Context(), engine, bmdb.Options{})
	must(err)
	t.Cleanup(func() { must(db.Close()) })
	must(db.RegisterProvider(t.Context(), "metal", "equinix", 7))
	s := New(db, Options{})
	// after tells the concerns as somebody sees them that much later.
	after := func(later time.Duration) string {
		t.Helper()
		summary, err := db.Summary(t.Context())
		must(err)
		summary.At = summary.At.Add(later)
		all, err := s.concerns(t.Context(), summary, providersOf(t, db))
		must(err)
		var texts []string
		for _, c := range all {
			if c.GetText() == "" || c.GetCount() < 1 {
				t.Errorf("a concern is empty: %v", c)
			}
			texts = append(texts, c.GetKind()+": "+c.GetText())
		}
		return strings.Join(texts, "\n")
	}
	if got := after(0); got != "" {
		t.Errorf("a fleet that has just begun: %s", got)
	}
	if got := after(time.Hour); !strings.Contains(got, "overdue: provision is overdue for ") {
		t.Errorf("passes that nobody runs: %s", got)
	}
	session, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: "tester", Lease: time.Minute})
	must(err)
	claim, err := session.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessProvision, Limit: 1})
	must(err)
	var opened []fleet.Intent
	intent := bmdb.NewIntent{Capacity: "c", Machine: fleet.NewMachineID(), Token: fleet.NewToken()}
	must(claim.Works[0].Note(t.Context(), bmdb.OpenIntents(0, []bmdb.NewIntent{intent}, &opened)))
	must(claim.Works[0].Fail(t.Context(), bmdb.Failure{Cause: "the provider answered Forbidden", Backoff: fleet.Backoff{Initial: time.Minute}}))
	if got := after(0); got != "provider: provider metal fails, 1 time so far: the provider answered Forbidden" {
		t.Errorf("a provider that fails: %s", got)
	}
	full := New(db, Options{Writable: func(context.Context) error { return errors.New("the database takes no changes: the disk is full") }})
	summary, err := db.Summary(t.Context())
	must(err)
	waits := bmdb.Summary{At: summary.At, Processes: []bmdb.ProcessSummary{{Process: fleet.ProcessInstall, Due: 1, OldestDue: summary.At.Add(-time.Hour)}}}
	if all, err := s.concerns(t.Context(), waits, nil); err != nil || len(all) != 0 {
		t.Errorf("an install waits for its agent: %v, %v", all, err)
	}
	waits.Processes = []bmdb.ProcessSummary{{Process: fleet.ProcessRecovery, Due: 3, NoRoom: 3}}
	for range 2 {
		if all, err := s.concerns(t.Context(), waits, nil); err != nil || len(all) != 0 {
			t.Errorf("recovery waits for room: %v, %v", all, err)
		}
		waits.At = waits.At.Add(time.Hour)
	}
	waits.Processes = []bmdb.ProcessSummary{{Process: fleet.ProcessRecovery, Due: 5, NoRoom: 3, OldestDue: waits.At.Add(-time.Hour)}}
	if all, err := s.concerns(t.Context(), waits, nil); err != nil || len(all) != 1 ||
		all[0].GetText() != "recovery is overdue for an hour, 2 are waiting: no loop does it, or it is busy" || all[0].GetCount() != 2 {
		t.Errorf("recovery waits for more than room: %v, %v", all, err)
	}
	told, err := full.concerns(t.Context(), summary, nil)
	must(err)
	if len(told) == 0 || told[0].GetKind() != string(fleet.ConcernDatabase) || !strings.HasPrefix(told[0].GetText(), "the database takes no changes: the disk is full: this control plane does nothing, ") {
		t.Errorf("a full disk: %v", told)
	}
	deaf := func(state fleet.State) string {
		t.Helper()
		env, err := db.Environment(t.Context())
		must(err)
		all := deaf(env, bmdb.Summary{States: map[fleet.State]int{state: 2}})
		if len(all) == 0 {
			return ""
		}
		return all[0].GetKind() + ": " + all[0].GetText()
	}
	if got := deaf(fleet.StateAvailable); got != "listener: no agent listener is up: nothing is heard of 2 machines" {
		t.Errorf("nobody listens: %q", got)
	}
	if got := deaf(fleet.StateInstalled); got != "" { // nothing is to be heard of them
		t.Errorf("nobody listens, and nobody has to speak: %q", got)
	}
	must(db.ListenerAlive(t.Context(), time.Minute, time.Second))
	if got := deaf(fleet.StateAvailable); got != "" {
		t.Errorf("a listener is up: %q", got)
	}
	must(db.ListenerFull(t.Context(), 4*time.Minute))
	if got := after(3 * time.Minute); !strings.Contains(got, "listener: an agent listener has turned callers away for want of room, or has a certificate that agents refuse, since ") ||
		!strings.Contains(got, " UTC: no silence counts, and recovery waits; renew that certificate, which the log of its process names, or raise agent_api.max_connections, ") ||
		!strings.Contains(got, " or max_unadmitted, or keep out the strangers ") {
		t.Errorf("there is no room: %s", got)
	}
	if got := after(5 * time.Minute); strings.Contains(got, "listener: ") {
		t.Errorf("there was no room: %s", got)
	}
	if got := after(3 * time.Hour); !strings.Contains(got, "late: 1 creating for more than an hour, the oldest for 3 hours") {
		t.Errorf("a machine that does not get on: %s", got)
	}
}

// TestAProviderThatIsTriedAgain: it is a concern from its first failure to its next success, also
// while it is due and while somebody tries it. Nobody tries one that is paused.
func TestAProviderThatIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		engine := sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{})
		db, err := bmdb.Open(t.Context(), engine, bmdb.Options{})
		must(err)
		t.Cleanup(func() { must(db.Close()) })
		must(db.RegisterProvider(t.Context(), "metal", "equinix", 7))
		expect := func(when string, failures string) {
			t.Helper()
			summary, err := db.Summary(t.Context())
			must(err)
			all, err := New(db, Options{}).concerns(t.Context(), summary, providersOf(t, db))
			must(err)
			got, want := "", ""
			for _, c := range all {
				if c.GetKind() != string(fleet.ConcernRole) { // nobody else is here
					got += c.GetText()
				}
			}
			if failures != "" {
				want = "provider metal fails, " + failures + " so far: no answer"
			}
			if got != want {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		session, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: "tester", Lease: time.Hour})
		must(err)
		claim := func() *bmdb.Work {
			t.Helper()
			claim, err := session.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessProvision, Limit: 1})
			must(err)
			return claim.Works[0]
		}
		failure := bmdb.Failure{Cause: "no answer", Backoff: fleet.Backoff{Initial: time.Minute}}
		must(claim().Fail(t.Context(), failure))
		expect("in backoff", "1 time")
		time.Sleep(2 * time.Minute)
		expect("when the backoff is over", "1 time")
		work := claim()
		expect("while it is tried", "1 time")
		must(work.Fail(t.Context(), failure))
		expect("in backoff again", "2 times")
		must(db.PauseProvider(t.Context(), "ada", "metal", "it is broken"))
		expect("while it is paused", "")
		must(db.ResumeProvider(t.Context(), "ada", "metal", ""))
		time.Sleep(2 * time.Minute)
		must(claim().Finish(t.Context()))
		expect("after a success", "")
	})
}

// TestARestoredDatabaseIsAConcern: nothing that destroys or restarts machines goes on, and the
// states of the machines do not show it.
func TestARestoredDatabaseIsAConcern(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "bmdb")
	told := func() string {
		t.Helper()
		db, err := bmdb.Open(t.Context(), sqlitetest.Open(t, path, sqlite.Options{}), bmdb.Options{})
		if err != nil {
			t.Fatal(err)
		}
		summary, err := db.Summary(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all, err := New(db, Options{}).concerns(t.Context(), summary, providersOf(t, db))
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(all)
	}
	for range 2 {
		if got := told(); got != "[]" {
			t.Errorf("a new database: %s", got)
		}
	}
	if err := os.Remove(path + ".identity"); err != nil {
		t.Fatal(err)
	}
	if got := told(); !strings.Contains(got, "restored") || !strings.Contains(got, "waits for `ironherd db accept-restore`; look first at what providers and hosts have") {
		t.Errorf("a database without its mark: %s", got)
	}
}

// TestAFaultOfTheDatabaseIsAConcern: what the janitor has found is not in the log alone.
func TestAFaultOfTheDatabaseIsAConcern(t *testing.T) {
	t.Parallel()
	found := []bmdb.Finding{{Invariant: "I2", Subject: "machine 1", Detail: "no entry"}, {Invariant: "I4", Subject: "machine 2", Detail: "no end"}}
	for n, want := range []string{
		"", "the check of the database has found 1 fault, which the log has; the first one is of I2 at machine 1: no entry",
		"the check of the database has found 2 faults, which the log has; the first one is of I2 at machine 1: no entry",
	} {
		s := New(nil, Options{Findings: func() []bmdb.Finding { return found[:n] }})
		got := ""
		for _, c := range s.violated() {
			got += c.GetText()
		}
		if got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

// providersOf returns the providers as a summary reads them.
func providersOf(t *testing.T, db *bmdb.DB) []bmdb.ProviderRow {
	t.Helper()
	rows, err := db.Providers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestARoleThatNobodyHasIsAConcern: that of the janitor at once, that of a loop when something of
// it is due; and it takes the place of the sentence that says that the work is overdue.
func TestARoleThatNobodyHasIsAConcern(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, must := openBMDB(t)
		told := func() string {
			t.Helper()
			summary, err := db.Summary(t.Context())
			must(err)
			all, err := New(db, Options{}).concerns(t.Context(), summary, providersOf(t, db))
			must(err)
			got := ""
			for _, c := range all {
				got += fmt.Sprintf("%s %s %d: %s\n", c.GetKind(), c.GetSubject(), c.GetCount(), c.GetText())
			}
			return got
		}
		if got := told(); got != "" {
			t.Errorf("a control plane that has just begun: %s", got)
		}
		time.Sleep(10 * time.Minute)
		const remedy = "; start an `ironherd serve` whose `roles` has it\n"
		const janitor = "role janitor 1: no live control plane has the role janitor: many silent machines do not stop recovery, " +
			"installs do not run out of time, and a new policy reaches no machine" + remedy
		if got := told(); got != janitor {
			t.Errorf("without a janitor: %s", got)
		}
		must(db.RegisterProvider(t.Context(), "metal", "equinix", 7))
		want := "role provisioner 1: no live control plane has the role provisioner: provision is due 1 time" + remedy +
			"role updater 1: no live control plane has the role updater: update is due 1 time" + remedy + janitor
		if got := told(); got != want {
			t.Errorf("with a provider, and nobody: %s", got)
		}
		for _, role := range fleet.Roles() {
			_, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: role.Component(), Lease: time.Hour})
			must(err)
		}
		if got := told(); got != "" {
			t.Errorf("with everybody: %s", got)
		}
	})
}

func openBMDB(t *testing.T) (*bmdb.DB, func(error)) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	db, err := bmdb.Open(t.Context(), sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{}), bmdb.Options{})
	must(err)
	t.Cleanup(func() { must(db.Close()) })
	return db, must
}

// TestACertificateThatExpiresIsAConcern, two weeks before, and afterwards.
func TestACertificateThatExpiresIsAConcern(t *testing.T) {
	t.Parallel()
	certificates, err := server.OpenCertificates(server.ForAgents, t.TempDir(), []string{"localhost"}, discardLog)
	if err != nil {
		t.Fatal(err)
	}
	s := New(nil, Options{Certificates: []*server.Certificates{certificates}})
	end := certificates.Expires()
	day := end.UTC().Format("2006-01-02 15:04:05 UTC")
	for before, want := range map[time.Duration]string{
		15 * 24 * time.Hour: "",
		13 * 24 * time.Hour: "certificate agent-api: the certificate of the agent API expires in 13 days (" + day + "), and nobody has renewed it",
		-time.Second:        "certificate agent-api: the certificate of the agent API has expired at " + day,
	} {
		got := ""
		for _, c := range s.certificates(end.Add(-before)) {
			got += fmt.Sprintf("%s %s: %s", c.GetKind(), c.GetSubject(), c.GetText())
		}
		if got != want {
			t.Errorf("%s before its end: %q, want %q", before, got, want)
		}
	}
}

// TestACertificateThatInstalledSystemsRefuseIsAConcern, though agents accept it.
func TestACertificateThatInstalledSystemsRefuseIsAConcern(t *testing.T) {
	t.Parallel()
	var dirs [2]string
	for i := range dirs {
		dirs[i] = t.TempDir()
		if _, err := server.OpenCertificates(server.ForAgents, dirs[i], []string{"localhost"}, discardLog); err != nil {
			t.Fatal(err)
		}
	}
	pair := filepath.Join(dirs[0], "agent-server.pem")
	config := server.CertificateConfig{Certificate: pair, Key: pair, CACertificate: filepath.Join(dirs[1], "agent-ca.pem")}
	certificates, err := config.Open("", nil, filepath.Join(dirs[0], "agent-ca.pem"), discardLog)
	if err != nil {
		t.Fatal(err)
	}
	all := New(nil, Options{Certificates: []*server.Certificates{certificates}}).certificates(time.Now())
	if len(all) != 1 || !strings.Contains(all[0].GetText(), "which installed systems are given") {
		t.Errorf("concerns: %v", all)
	}
}

// TestTokensThatRunOutAreAConcern: the last one of each role, from the last tenth of its life on
// and for 30 days after its end, whoever else may call.
func TestTokensThatRunOutAreAConcern(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "tokens.yaml")
		tokens, err := token.Open(path, discardLog)
		if err != nil {
			t.Fatal(err)
		}
		s := New(nil, Options{Tokens: tokens, Exposed: true})
		expect := func(when string, want ...string) {
			t.Helper()
			var got []string
			for _, c := range s.tokens(time.Now()) {
				got = append(got, strings.TrimSpace(fmt.Sprintf("%s %d %s: %s", c.GetKind(), c.GetCount(), c.GetSubject(), c.GetText())))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: %s", when, diff)
			}
			for _, role := range token.Roles() {
				told := slices.ContainsFunc(want, func(text string) bool { return strings.Contains(text, "with the role "+string(role)) })
				if tokens.RunsOut(role, time.Now()) != told {
					t.Errorf("%s: the gauge of %s is %v", when, role, !told)
				}
			}
		}
		const day = 24 * time.Hour
		create := func(name string, role token.Role, life time.Duration) {
			t.Helper()
			if _, _, err := token.Create(path, name, role, life); err != nil {
				t.Fatal(err)
			}
		}
		const none = "token 1 : no token counts: nobody can call from other hosts until one is made on this control plane's host with `ironherd token create NAME --role ROLE`"
		expect("none", none)
		create("ada", token.Operator, 90*day)
		create("ci", token.Operator, day)
		create("root", token.Admin, 3000*day)
		expect("new ones")
		time.Sleep(81 * day)
		expect("nine days before the end")
		time.Sleep(day)
		soon := "token 1 ada: the last token with the role operator, ada, expires in 8 days (2000-03-31 00:00:00 UTC): " +
			"make another one on this control plane's host with `ironherd token create NAME --role operator`"
		expect("eight days before the end", soon)
		s.options.Exposed = false
		expect("eight days before the end, and only this host calls", soon)
		time.Sleep(8 * day)
		expired := "token 1 ada: the last token with the role operator, ada, has expired at 2000-03-31 00:00:00 UTC, so whoever uses it is refused: " +
			"make it anew on this control plane's host with `ironherd token create ada --role operator`, or say with `ironherd token revoke ada` that nobody needs it"
		expect("expired, and only this host calls", expired)
		time.Sleep(30*day - time.Second)
		expect("expired for nearly 30 days", expired)
		time.Sleep(time.Second)
		expect("expired for 30 days")
		create("prometheus", token.Metrics, 30*day)
		time.Sleep(29 * day)
		create("evening", token.Viewer, day)
		time.Sleep(2 * day)
		if err := token.Revoke(path, "root"); err != nil {
			t.Fatal(err)
		}
		s.options.Exposed = true
		expect("nobody needs an admin, and the metrics are lost", none, "token 1 prometheus: the last token with the role metrics, prometheus, has expired at 2000-05-30 00:00:00 UTC, "+
			"so whoever uses it is refused: make it anew on this control plane's host with `ironherd token create prometheus --role metrics`, "+
			"or say with `ironherd token revoke prometheus` that nobody needs it")
		create("other", token.Metrics, 1000*day)
		expect("a token in its place")
		time.Sleep(986 * day)
		expect("two weeks before the end")
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		const open = "token 1 : no token counts, so nobody can call over TCP: %s is open to others (mode 0644): " +
			"replace the secret if they may have read it, then `chmod 600 %[1]s`"
		expect("open to others", fmt.Sprintf(open, path))
		s.options.Exposed = false
		expect("open to others, and only this host calls", fmt.Sprintf(open, path))
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		expect("none, and only this host calls")
	})
}

// TestWhatToCheckWhenManyAreSilent: the listener, its certificate with its end, and the clock.
func TestWhatToCheckWhenManyAreSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		certificates, err := server.OpenCertificates(server.ForAgents, t.TempDir(), []string{"localhost"}, discardLog)
		if err != nil {
			t.Fatal(err)
		}
		s := New(nil, Options{Certificates: []*server.Certificates{certificates}, Endpoint: "herd.example:7443"})
		expect := func(env fleet.Environment, want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, s.suspects(env, time.Now().Add(time.Hour))); diff != "" {
				t.Error(diff)
			}
		}
		expect(fleet.Environment{ListenerUpSince: time.Now()},
			"whether machines reach the listener at herd.example:7443: one is up since 00:00:00 UTC",
			"its certificate: it expires at 2000-12-31 00:00:00 UTC",
			"the clocks: it is 2000-01-01 00:00:00 UTC here, and 2000-01-01 01:00:00 UTC by the database")
		full := fleet.Environment{ListenerUpSince: time.Now(), ListenerFullSince: time.Now(), ListenerFullUntil: time.Now().Add(2 * time.Hour)}
		expect(full,
			"whether machines reach the listener at herd.example:7443: one is up since 00:00:00 UTC",
			"its room and certificate: not every caller has been served since 00:00:00 UTC",
			"its certificate: it expires at 2000-12-31 00:00:00 UTC",
			"the clocks: it is 2000-01-01 00:00:00 UTC here, and 2000-01-01 01:00:00 UTC by the database")
		time.Sleep(366 * 24 * time.Hour)
		expect(fleet.Environment{},
			"whether machines reach the listener at herd.example:7443: none is up",
			"its certificate: the certificate of the agent API has expired at 2000-12-31 00:00:00 UTC",
			"the clocks: it is 2001-01-01 00:00:00 UTC here, and 2001-01-01 01:00:00 UTC by the database")
	})
}

var discardLog = slog.New(slog.DiscardHandler)
