package postgres_test

import (
	"strings"
	"testing"

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
