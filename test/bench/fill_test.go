package main

import (
	"io"
	"testing"
	"time"
)

// TestLargeFleet: a fleet of copies is one that the protocol could have made. Its check, which
// large runs, finds nothing; the agenda has no entry that the check does not look for; and what is
// due can be worked on, all of it.
func TestLargeFleet(t *testing.T) {
	t.Parallel()
	const size, due = 1000, 300
	ctx := t.Context()
	b := &bench{options: options{batch: 100, check: size}, progress: io.Discard, began: time.Now()}
	defer b.close()
	s, err := b.large(ctx, size, due, 3000)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.db.Close() }()
	conn, err := b.pg.connect(ctx, s.name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	for what, c := range map[string]struct {
		query string
		want  int
	}{
		"machines":           {"SELECT count(*) FROM machine", size},
		"machines in a lane": {"SELECT count(*) FROM machine WHERE session <> ''", 0},
		"machines that wait": {"SELECT count(*) FROM " + waiting, due},
		// the twenty that were copied became due at one instant
		"instants of those":    {"SELECT count(DISTINCT due_at) FROM " + waiting, due - 19},
		"entries out of place": {staleEntries, 0},
	} {
		var n int
		if err := conn.QueryRow(ctx, c.query).Scan(&n); err != nil || n != c.want {
			t.Errorf("%s: %d, not %d, %v", what, n, c.want, err)
		}
	}
	for _, want := range []int{100, 100, 100, 0} {
		works, err := s.claim(ctx)
		if err != nil || len(works) != want {
			t.Fatalf("%d works, not %d, %v", len(works), want, err)
		}
	}
}

// waiting are the entries of machines that are due for an agent by now. Those whose agents have
// spoken have one each for when they fall silent.
const waiting = `agenda WHERE process = 'agent-start' AND due_at <= 1000000 * extract(epoch FROM now())`

// staleEntries counts the entries of machines that their rows do not name.
const staleEntries = `SELECT count(*) FROM agenda a JOIN machine m ON m.id = a.subject
	WHERE a.due_at <> CASE a.process WHEN 'agent-start' THEN m.due_agent_start WHEN 'install' THEN m.due_install ELSE m.due_recovery END`
