package test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/test/process"
)

// The machine of the control plane goes back to a snapshot, with its whole state directory: nothing
// in there can tell that time has passed. Meanwhile all machines were installed. The restored
// control plane takes their hosts over and wants to install them; the agents refuse, each machine
// says so, and not a byte is written.
func TestRestoredStateOverwritesNothing(t *testing.T) {
	t.Parallel()
	ctx := bounded(t, 4*time.Minute)
	herd := &process.Herd{Ironherd: ironherd, Dir: shortDir(t), Machines: 6}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(herd.StartWorld(ctx))
	defer func() {
		if err := stop(t, herd); err != nil {
			t.Error(err)
		}
	}()
	// before the snapshot: the machines are there, and nobody starts agents on them
	config, err := os.ReadFile(herd.Config())
	check(err)
	check(os.WriteFile(herd.Config(), append(slices.Clip(config), "\nroles: [provisioner, updater, operator-api]\n"...), 0o600))
	check(herd.StartPlane(ctx))
	check(awaitState(ctx, herd, "provided"))
	check(herd.Plane().Stop(ctx))
	state, snapshot := filepath.Dir(herd.Socket()), filepath.Join(t.TempDir(), "snapshot")
	check(copyAll(ctx, state, snapshot))

	check(os.WriteFile(herd.Config(), config, 0o600))
	check(herd.StartPlane(ctx))
	check(herd.AwaitInstalled(ctx, func(line string) { t.Log(line) }))
	check(herd.Settle(ctx))
	check(herd.Plane().Stop(ctx))
	before, err := herd.Status(ctx)
	check(err)

	check(os.RemoveAll(state))
	check(copyAll(ctx, snapshot, state))
	check(herd.StartPlane(ctx))
	if err := awaitRefusals(ctx, herd); err != nil {
		status, _ := herd.Status(t.Context())
		t.Fatalf("%v\n%+v", err, status)
	}
	after, err := herd.Status(ctx)
	check(err)
	if after.InstalledMoreThanOnce != 0 || after.InstallsVerified != before.InstallsVerified {
		t.Errorf("machines installed more than once: %d; systems that came up: %d before, %d after", after.InstalledMoreThanOnce,
			before.InstallsVerified, after.InstallsVerified)
	}
}

// copyAll copies a directory with the modes of its files: keys that others can read are refused.
func copyAll(ctx context.Context, from, to string) error {
	if out, err := exec.CommandContext(ctx, "cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	return nil
}

// awaitState waits until all machines are in the state.
func awaitState(ctx context.Context, herd *process.Herd, state string) error {
	return awaitMachines(ctx, herd, func(m *fleetv1.Machine) bool { return m.GetState() == state })
}

// awaitRefusals waits until each machine says that its disk is not overwritten.
func awaitRefusals(ctx context.Context, herd *process.Herd) error {
	return awaitMachines(ctx, herd, func(m *fleetv1.Machine) bool {
		return strings.Contains(m.GetReason(), "holds install generation 1 (attempt 1) of this machine already")
	})
}

func awaitMachines(ctx context.Context, herd *process.Herd, is func(*fleetv1.Machine) bool) error {
	var last []string
	for {
		list, err := herd.Client().ListMachines(ctx, &fleetv1.ListMachinesRequest{PageSize: 1000})
		machines := list.GetMachines()
		if err == nil && len(machines) == herd.Machines && !slices.ContainsFunc(machines, func(m *fleetv1.Machine) bool { return !is(m) }) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %q; the control plane says: %s", ctx.Err(), last, herd.Plane().Stderr())
		}
		last = nil
		for _, m := range machines {
			last = append(last, m.GetState()+": "+m.GetReason())
		}
		letRun(ctx, 200*time.Millisecond)
	}
}
