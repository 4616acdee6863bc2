package postgres_test

import (
	"context"
	"database/sql"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/test/pgserver"
)

// TestFloorStaysBelowWhatIsLeft: what a claim found, and somebody else had locked, is found by the
// next one. Nobody tells that the lock is gone, and what was due is so for longer than a floor
// stays behind.
func TestFloorStaysBelowWhatIsLeft(t *testing.T) {
	t.Parallel()
	p, url, ids := stocked(t, 1, postgres.Options{Silent: true})
	p.shift.Advance(time.Minute)
	s := p.session("a", time.Hour)
	tx := stranger(t, url, "SELECT id FROM machine WHERE id = ANY($1) FOR UPDATE", ids)
	if got := p.claim(s, 1); len(got) != 0 {
		t.Fatalf("claimed %d of what is locked", len(got))
	}
	p.must(tx.Rollback(t.Context()))
	if got := p.claim(s, 1); len(got) != 1 {
		t.Errorf("claimed %d of what is locked no more", len(got))
	}
	p.sound()
}

// betweenPages is an engine that has something done before the second page of the agenda is read in
// a transaction.
type betweenPages struct {
	bmdb.Engine
	do atomic.Pointer[func()]
}

type pagedTx struct {
	bmdb.Tx
	engine *betweenPages
	pages  *int
}

func (e *betweenPages) Peek(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return e.Engine.Peek(ctx, func(ctx context.Context, tx bmdb.Tx) error { return fn(ctx, pagedTx{tx, e, new(int)}) })
}

func (t pagedTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if strings.Contains(query, "ListAgenda") {
		if *t.pages++; *t.pages == 2 {
			if do := t.engine.do.Swap(nil); do != nil {
				(*do)()
			}
		}
	}
	return t.Tx.QueryContext(ctx, query, args...)
}

// TestARowComesAgainBetweenPages: each page of the agenda is of an instant of its own, so a row
// that is put off between two of them, to where it is due still, is on both. It is one candidate.
func TestARowComesAgainBetweenPages(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	engine := &betweenPages{Engine: open(t, url, postgres.Options{Silent: true})}
	db, err := bmdb.Open(t.Context(), engine, bmdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	id := fleet.NewMachineID()
	for name, ids := range map[fleet.ProviderName][]fleet.MachineID{"p1": {id}, "p2": {fleet.NewMachineID(), fleet.NewMachineID()}} {
		if err := bmdbtest.Stock(t.Context(), db, name, ids, nil); err != nil {
			t.Fatal(err)
		}
	}
	run := func(statement string) {
		t.Helper()
		database := url[strings.LastIndexByte(url, '/')+1 : strings.IndexByte(url, '?')]
		if err := pgserver.Shared(t).Exec(t.Context(), database, statement); err != nil {
			t.Error(err)
		}
	}
	run("UPDATE agenda SET due_at = CASE provider WHEN 'p1' THEN 1 ELSE 2 END WHERE process = 'agent-start'")
	run("UPDATE machine SET due_agent_start = CASE provider WHEN 'p1' THEN 1 ELSE 2 END")
	moved := false
	put := func() {
		moved = true
		run("UPDATE agenda SET due_at = 3 WHERE subject = '" + string(id) + "' AND process = 'agent-start'")
		run("UPDATE machine SET due_agent_start = 3 WHERE id = '" + string(id) + "'")
	}
	engine.do.Store(&put)
	s, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: "a", Host: "h", PID: 1, Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Providers: []fleet.ProviderName{"p1"}, Limit: 2})
	if err != nil || len(c.Works) != 1 || !moved {
		t.Errorf("claimed %d, %v (the row was moved: %t)", len(c.Works), err, moved)
	}
}
