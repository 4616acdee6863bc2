package test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/test/process"
)

// TestFaults brings a fleet up in a world that injects every kind of fault.
func TestFaults(t *testing.T) {
	t.Parallel()
	ctx := bounded(t, 4*time.Minute)
	kinds := []string{"lost-reply", "429", "500", "ssh-refused", "agent-start"}
	herd := &process.Herd{
		Ironherd: ironherd, Dir: shortDir(t), Machines: 30,
		WorldArgs: []string{"--faults", strings.Join(kinds, "=10%,") + "=10%"},
	}
	if err := herd.StartWorld(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(t, herd); err != nil {
			t.Error(err)
		}
	})
	startPlane(ctx, t, herd)
	if err := herd.AwaitInstalled(ctx, func(line string) { t.Log(line) }); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return herd.Check(ctx) })

	status, err := herd.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	fired := map[string]float64{}
	for _, f := range status.Faults {
		t.Logf("fault %s: %d of %d", f.Fault, f.Fired, f.Opportunities)
		fired[string(f.Fault)] = float64(f.Fired) / float64(max(1, f.Opportunities))
	}
	for _, kind := range kinds {
		if fired[kind] < 0.05 {
			t.Errorf("fault %s fired in %.1f %% of its calls, want 5 %% or more", kind, 100*fired[kind])
		}
	}
	tellsCauses(t, herd)
}

// tellsCauses checks that the histories of the machines have the failures that were injected, with
// their causes.
func tellsCauses(t *testing.T, herd *process.Herd) {
	t.Helper()
	list, err := herd.Client().ListMachines(t.Context(), &fleetv1.ListMachinesRequest{PageSize: 1000})
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	var told strings.Builder
	for _, m := range list.GetMachines() {
		code, stdout, stderr := herd.CLI(t.Context(), "machine", "history", m.GetId(), "-o", "json")
		if code != 0 {
			t.Fatalf("machine history: %d, %s", code, stderr)
		}
		var history struct {
			Entries []struct{ Event, Process, Detail, RetryAt string }
		}
		if err := json.Unmarshal([]byte(stdout), &history); err != nil {
			t.Fatal(err)
		}
		for _, e := range history.Entries {
			if e.Event != "failed" {
				continue
			}
			failed++
			told.WriteString(e.Detail + "\n")
			if e.Detail == "" || e.RetryAt == "" {
				t.Errorf("a failure without its cause or its next time: %+v", e)
			}
		}
	}
	if failed == 0 {
		t.Error("no history tells of a failure")
	}
	t.Logf("%d failures are told, such as:\n%.1000s", failed, told.String())
}

// startPlane starts the control plane, and waits until it is ready.
func startPlane(ctx context.Context, t *testing.T, herd *process.Herd) {
	t.Helper()
	if err := herd.StartPlane(ctx); err != nil {
		t.Fatal(err)
	}
	if err := herd.AwaitPlane(ctx); err != nil {
		t.Fatal(err)
	}
}

// eventually repeats a check until it passes, because what it looks at may be a moment behind.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.After(3 * time.Minute)
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal(err)
		}
	}
}
