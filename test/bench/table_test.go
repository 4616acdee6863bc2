package main

import (
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestFlat: database CPU or buffers decide, and wall time does not.
func TestFlat(t *testing.T) {
	t.Parallel()
	at := func(cpu time.Duration, buffers float64, wall time.Duration) []figures {
		return []figures{{ops: 10, cpu: cpu, buffers: buffers, wall: wall}, {ops: 30, cpu: 3 * cpu, buffers: 3 * buffers, wall: 3 * wall}}
	}
	for name, c := range map[string]struct {
		large []figures
		met   string
	}{
		"both grow":    {at(1300, 130, 1000), "**no**"},
		"CPU grows":    {at(1300, 110, 9000), "yes"},
		"buffers grow": {at(1100, 130, 9000), "yes"},
	} {
		b := &bench{table: &table{}}
		b.addFlat("x", true, []int{1000, 1_000_000}, [][]figures{at(1000, 100, 1000), c.large})
		if len(b.table.rows) != 3 || b.table.rows[0].met != c.met || b.table.rows[1].met+b.table.rows[2].met != "" {
			t.Errorf("%s: %+v", name, b.table.rows)
		}
	}
}

// TestCompare: a goal is for the ratio or for ours, and what has none is not judged.
func TestCompare(t *testing.T) {
	t.Parallel()
	ours := []figures{{ops: 1000, wall: time.Second, cpu: 100 * time.Millisecond, client: 70 * time.Millisecond, writes: writes{updated: 3000, hot: 1000}}}
	reference := []figures{{ops: 1200, wall: time.Second, cpu: 108 * time.Millisecond, client: 12 * time.Millisecond}}
	b := &bench{table: &table{}}
	b.compare("x", ours, reference, map[string]goal{rateFigure: atLeast(0.8), cpuFigure: atMost(1), clientFigure: oursAtMost(60, "µs")})
	got := make(map[string]row)
	for _, r := range b.table.rows {
		got[strings.TrimPrefix(strings.TrimPrefix(r.what, "x: "), "the same: ")] = r
	}
	for name, want := range map[string]row{
		rateFigure:                    {goal: "≥ 0.8×", ours: "1000/s", reference: "1200/s", ratio: "0.83", met: "yes"},
		cpuFigure:                     {goal: "≤ 1×", ours: "100 µs", reference: "90.0 µs", ratio: "1.11", met: "**no**"},
		clientFigure:                  {goal: "≤ 60 µs", ours: "70.0 µs", reference: "10.0 µs", ratio: "7.00", met: "**no**"},
		"updates that are not HOT":    {ours: "2.00", reference: "0.00"},
		"HOT updates":                 {ours: "1.00", reference: "0.00"},
		"CPU of background processes": {ours: "0.00 µs", reference: "0.00 µs"},
	} {
		r := got[name]
		if r.what = ""; r != want {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestDeletions: the cleaner tells each batch below the level of what it tells in the end.
func TestDeletions(t *testing.T) {
	t.Parallel()
	d := new(deletions)
	logger := slog.New(d).With("name", "JobCleaner")
	logger.Debug("Deleted batch of jobs", slog.Int("num_jobs_deleted", 10_000))
	logger.Info("Ran successfully", slog.Int("num_jobs_deleted", 12_000))
	logger.Info("Ran successfully", slog.Int("num_jobs_deleted", 30))
	logger.Info("something else", slog.Int("n", 1))
	if n := d.n.Load(); n != 12_030 {
		t.Fatal(n)
	}
}
