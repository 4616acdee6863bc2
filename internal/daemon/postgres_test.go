package daemon_test

import (
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/daemon"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/test/pgserver"
)

// TestPostgres: any number of control planes on one database, once it has the schema; the commands
// on it while they run; and the sentences for a schema that is older or newer.
func TestPostgres(t *testing.T) {
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
	name, err := server.Create(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	onServer := func(roles ...fleet.Role) config.Config {
		c := settings(t)
		// However busy the host is, nobody's transaction is taken for one that its client has left.
		c.Database.URL, c.Database.Path = server.URL(name)+"&idle_in_transaction_session_timeout=120000", ""
		if len(roles) > 0 {
			c.Roles = roles
		}
		return c
	}
	c := onServer()
	refused := func(want string) {
		t.Helper()
		d, err := daemon.Open(t.Context(), c, daemon.Options{Logger: slog.New(slog.DiscardHandler)})
		if err == nil {
			t.Fatal("opened", d.Close())
		}
		if fleet.KindOf(err) != fleet.KindConflict || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", fleet.KindOf(err), err)
		}
	}
	refused("run `ironherd db migrate`")
	if from, to, err := daemon.Migrate(t.Context(), c); err != nil || from != 0 || to == 0 {
		t.Fatalf("migrate: %d to %d, %v", from, to, err)
	}
	first := open(t, c)
	second := open(t, onServer(fleet.RoleJanitor, fleet.RoleUpdater))
	stops := []func() error{start(t, first), start(t, second)}
	client, health := overSocket(t, first), "http://herd/healthz"
	await(t, client, "http://herd/readyz", http.StatusOK, "")
	await(t, client, health, http.StatusOK, `"database"`)
	if found, err := daemon.CheckDatabase(t.Context(), c); err != nil || len(found) != 0 {
		t.Errorf("check: %v, %v", found, err)
	}
	if from, to, err := daemon.Migrate(t.Context(), c); err != nil || from != to {
		t.Errorf("migrate again: %d to %d, %v", from, to, err)
	}
	if d, err := daemon.Open(t.Context(), onServer(), daemon.Options{}); err == nil || !strings.Contains(err.Error(), " is another authority than the database has ") {
		t.Errorf("beside others, one with an authority of its own: %v, %v", d, err)
	}
	if _, err := daemon.AcceptAuthority(t.Context(), onServer(), "test"); fleet.KindOf(err) != fleet.KindConflict {
		t.Errorf("an authority was accepted beside others: %v", err)
	}
	if r, err := daemon.AcceptRestore(t.Context(), c, "test", true); err != nil || r.Accepted {
		t.Errorf("accept: %+v, %v", r, err)
	}
	full := func(statements ...string) {
		t.Helper()
		if err := server.Exec(t.Context(), name, statements...); err != nil {
			t.Fatal(err)
		}
	}
	full(`CREATE FUNCTION no_space() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = '53100'; END $$`,
		"CREATE TRIGGER no_space BEFORE INSERT ON history EXECUTE FUNCTION no_space()")
	pause := func() int {
		return post(t, client, fleetv1connect.FleetServicePauseRecoveryProcedure, `{"reason": "a test"}`)
	}
	if code := pause(); code != http.StatusServiceUnavailable {
		t.Errorf("a change that needs room on a full disk: %d", code)
	}
	await(t, client, health, http.StatusServiceUnavailable, "the database takes no changes: probe: the disk of the database server is full: make room on it")
	full("DROP TRIGGER no_space ON history")
	await(t, client, health, http.StatusOK, "")
	if code := pause(); code != http.StatusOK {
		t.Errorf("a change when there is room again: %d", code)
	}
	server.Stop()
	await(t, client, health, http.StatusServiceUnavailable, "the database server")
	if err := server.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, client, health, http.StatusOK, "")
	server.Stop()
	if err := errors.Join(server.Standby(true), server.Resume(t.Context())); err != nil {
		t.Fatal(err)
	}
	await(t, client, health, http.StatusServiceUnavailable, "it is a standby")
	server.Stop()
	if err := errors.Join(server.Standby(false), server.Resume(t.Context())); err != nil {
		t.Fatal(err)
	}
	await(t, client, health, http.StatusOK, "")
	client.CloseIdleConnections()
	for _, stop := range stops {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
	startsBesideALock(t, server, name, func() *daemon.Daemon { return open(t, c) })
	if err := server.Exec(t.Context(), name, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, true)"); err != nil {
		t.Fatal(err)
	}
	refused("is newer than this binary knows")
	if _, _, err := daemon.Migrate(t.Context(), c); fleet.KindOf(err) != fleet.KindConflict {
		t.Errorf("migrate what is newer: %v", err)
	}
}

// post calls a method of the operator API.
func post(t *testing.T, client *http.Client, procedure, body string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://herd"+procedure, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil {
		t.Error(err)
	}
	return response.StatusCode
}

// startsBesideALock: a control plane starts while somebody has its provider's row for longer than a
// lock is waited for.
func startsBesideALock(t *testing.T, server *pgserver.Server, name string, open func() *daemon.Daemon) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.URL(name))
	if err == nil {
		_, err = conn.Exec(t.Context(), "BEGIN; SELECT FROM provider FOR UPDATE")
	}
	if err != nil {
		t.Fatal(err)
	}
	stranger := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "SELECT pg_sleep(3); COMMIT")
		stranger <- errors.Join(err, conn.Close(t.Context()))
	}()
	stop := start(t, open())
	if err := stop(); err != nil {
		t.Error(err)
	}
	if err := <-stranger; err != nil {
		t.Error(err)
	}
}
