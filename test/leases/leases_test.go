package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
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
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
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

// TestReclaimed: a machine is claimed again in time, or the run fails. A process that dies between
// a claim and its line in the log has claimed all the same.
func TestReclaimed(t *testing.T) {
	t.Parallel()
	const struck, next, other = 7, 8, 9
	begun := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	at := func(seconds float64) time.Time { return begun.Add(time.Duration(seconds * float64(time.Second))) }
	still := []gap{{at(1), at(1.5)}, {at(3.5), at(9)}} // for 1.5 s until the claim
	stopped := func(pid int, seconds float64) blow { return blow{pid: pid, at: at(seconds), until: at(seconds + 4)} }
	for name, c := range map[string]struct {
		epoch   fleet.Epoch // of the claim that is logged, 4.5 s after the blow
		second  float64     // when epoch 2 was started, as history says
		also    blow
		claimed time.Duration
		fails   bool
		gaps    []gap
	}{
		"too late":                                {2, 4.4, blow{}, 4500 * time.Millisecond, true, nil},
		"nobody could, for a while":               {2, 4.4, blow{}, 4500 * time.Millisecond, false, still},
		"in time by who died at once":             {3, 2.25, blow{}, 2250 * time.Millisecond, false, nil},
		"too late by who died at once, too":       {3, 4.25, blow{}, 4250 * time.Millisecond, true, nil},
		"another was stopped, maybe in its claim": {2, 4.4, stopped(other, 2.5), 4500 * time.Millisecond, false, nil},
		"another was stopped long before":         {2, 4.4, stopped(other, 0.4), 4500 * time.Millisecond, true, nil},
		"another was stopped only after":          {2, 4.4, stopped(other, 4.1), 4500 * time.Millisecond, true, nil},
		"another was killed":                      {2, 4.4, blow{pid: other, at: at(2.5)}, 4500 * time.Millisecond, true, nil},
	} {
		torture := torture{lease: 2 * time.Second, blows: []blow{{pid: struck, at: begun}, c.also}, gaps: c.gaps}
		lines := []line{
			{at: at(-1), pid: struck, event: "claim", machine: "m", epoch: 1},
			{at: at(4.5), pid: next, event: "claim", machine: "m", epoch: c.epoch},
		}
		var r report
		torture.reclaimed(&r, lines, map[lease]ending{{"m", 2}: {from: at(c.second)}})
		if r.slowest != c.claimed || (len(r.faults) > 0) != c.fails {
			t.Errorf("%s: claimed again after %s, faults %v", name, r.slowest, r.faults)
		}
	}
}

// TestReclaimedByOneAlone: where one process has the database at a time, the time counts from when
// the one that replaced the struck one had opened it.
func TestReclaimedByOneAlone(t *testing.T) {
	t.Parallel()
	begun := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	at := func(seconds float64) time.Time { return begun.Add(time.Duration(seconds * float64(time.Second))) }
	for opened, fails := range map[float64]bool{0.4: true, 0.6: false, 4.6: true} {
		torture := torture{alone: true, lease: 2 * time.Second, blows: []blow{{pid: 7, at: begun}}}
		var r report
		torture.reclaimed(&r, []line{
			{at: at(-1), pid: 7, event: "claim", machine: "m", epoch: 1},
			{at: at(opened), pid: 8, event: "open"},
			{at: at(4.5), pid: 8, event: "claim", machine: "m", epoch: 2},
		}, nil)
		if (len(r.faults) > 0) != fails {
			t.Errorf("opened after %.1f s: %v", opened, r.faults)
		}
	}
}

// TestTornLine: a process that is killed while it writes has not written.
func TestTornLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	const log = "\n1 7 claim m 1  .\n2 7 done m 1 c\n3 8 claim m 2  .\n4 8 done m 2 cancelled ."
	if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	lines, err := readLog(path)
	if err != nil || len(lines) != 3 || lines[1].pid != 8 || lines[2].how != "cancelled" {
		t.Errorf("%+v, %v", lines, err)
	}
}

// TestLateEffects: who looked before anybody else had claimed, and was stopped then, could not help
// it. Everybody else is wrong.
func TestLateEffects(t *testing.T) {
	t.Parallel()
	const stopped, other, still = 7, 8, 9
	claimed := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		pid              int
		looked           time.Duration // after the next claim
		residual, faults int
	}{{stopped, -time.Millisecond, 1, 0}, {stopped, time.Millisecond, 0, 1}, {other, -time.Millisecond, 0, 1}, {stopped, -time.Second, 0, 1}, {still, -2 * time.Minute, 1, 0}, {still, -3 * time.Minute, 0, 1}} {
		torture := torture{
			blows: []blow{{pid: stopped, at: claimed, until: claimed.Add(time.Second)}},
			gaps:  []gap{{claimed.Add(-2*time.Minute - time.Second), claimed.Add(-time.Minute)}},
		}
		var r report
		torture.late(&r, line{pid: c.pid, at: claimed.Add(c.looked), machine: "m", epoch: 1}, 2, ending{from: claimed})
		if r.residual != c.residual || len(r.faults) != c.faults {
			t.Errorf("%d looked %s after the claim: %d residual, %v", c.pid, c.looked, r.residual, r.faults)
		}
	}
}
