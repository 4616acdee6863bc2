package main

import (
	"context"
	"os"
	"testing"
	"time"
)

// TestMain lets the test be its own worker.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "work" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestTorture is a sample of what `make torture-bmdb` does at length: it holds real processes that
// die and stall to I1, I4 and I8.
func TestTorture(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"sqlite", "postgres"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			torture := torture{kills: 8, stops: 3, seed: 7, lease: 2 * time.Second, told: func(line string) { t.Log(line) }}
			r, err := torture.on(ctx, engine)
			if err != nil {
				t.Fatal(err)
			}
			t.Log(r.row(engine, torture))
		})
	}
}
