package postgres

import (
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/test/pgserver"
)

// TestASessionLastsFromItsStart (rule 5): whatever the reading of the server's clock is that the
// process counts on from, the first deadline is a lease after the start at least. The holder trusts
// its session from then on.
func TestASessionLastsFromItsStart(t *testing.T) {
	t.Parallel()
	const lease = 5 * time.Second
	server := pgserver.Shared(t)
	e, err := Open(t.Context(), server.URL(server.Borrow(t, "migrated", migrateAt)), Options{Silent: true, Lease: lease})
	if err != nil {
		t.Fatal(err)
	}
	db, err := bmdb.Open(t.Context(), e, bmdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if err := e.ask(t.Context(), e.transactions); err != nil {
		t.Fatal(err)
	}
	// as if that answer had been on its way back for two seconds
	e.time.mu.Lock()
	e.time.said, e.time.sent, e.time.last = e.time.said.Add(-2*time.Second), e.time.sent-2*time.Second, time.Time{}
	e.time.mu.Unlock()

	var began, deadline int64
	ask := func(into *int64, query string, args ...any) {
		t.Helper()
		if err := e.transactions.QueryRow(t.Context(), query, args...).Scan(into); err != nil {
			t.Fatal(err)
		}
	}
	ask(&began, "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)")
	s, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: "a", Host: "h", Lease: lease})
	if err != nil {
		t.Fatal(err)
	}
	ask(&deadline, "SELECT deadline_at FROM session WHERE id = $1", string(s.ID()))
	if lasts := time.Duration(deadline-began) * time.Microsecond; lasts < lease {
		t.Errorf("it ends %s after its start, which is before its lease of %s", lasts, lease)
	}
}
