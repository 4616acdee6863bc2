package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestNobodyAnswers: one sentence, with the address once, though the driver tries twice.
func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	_, err := postgres.Open(t.Context(), "postgres://ironherd@127.0.0.1:1/none", postgres.Options{})
	if fleet.KindOf(err) != fleet.KindTemporary {
		t.Fatalf("got %v", err)
	}
	if text := err.Error(); strings.Contains(text, "\n") || strings.Count(text, "connection refused") != 1 || !strings.Contains(text, "database.url") {
		t.Errorf("got %s", text)
	}
}

// TestAStatementThatIsCancelled, because its caller's time is up or somebody asks the server for
// it, may be tried again.
func TestAStatementThatIsCancelled(t *testing.T) {
	t.Parallel()
	p, _, _ := stocked(t, 1, postgres.Options{Silent: true})
	for what, test := range map[string]struct {
		statement string
		limit     time.Duration
	}{
		"its time is up":       {"SELECT pg_sleep(60)", 3 * time.Second}, // it runs by then
		"somebody asks for it": {"SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(60)", time.Minute},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), test.limit)
		err := p.pause.Update(ctx, func(ctx context.Context, tx bmdb.Tx) error {
			_, err := tx.ExecContext(ctx, test.statement)
			return err
		})
		cancel()
		if fleet.KindOf(err) != fleet.KindTemporary {
			t.Errorf("%s: got %v", what, err)
		}
	}
}
