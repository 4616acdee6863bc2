package test

import (
	"bytes"
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
// control plane takes their hosts over and wants to install them; each machine says why that is
// refused, and not a byte is written.
func TestRestoredStateOverwritesNothing(t *testing.T) {
	t.Parallel()
	// The hosts are trusted at first sight, so agents start on them: these refuse.
	t.Run("agents refuse", func(t *testing.T) {
		t.Parallel()
		restoreAndLook(t, "holds install generation 1 (attempt 1) of this machine already",
			"    trust_first_use: true\n    equinix:\n      inject_host_key: false\n")
	})
	// The installed systems have host keys of their own, which the older database does not know.
	t.Run("hosts are not contacted", func(t *testing.T) {
		t.Parallel()
		restoreAndLook(t, "is expected (injected): nothing was sent to it")
	})
}

// restoreAndLook goes back to a snapshot and wants the reason in each machine's state. The settings
// take the place of the line that begins what the kind of provider has.
func restoreAndLook(t *testing.T, reason string, settings ...string) {
	t.Helper()
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
	for _, setting := range settings {
		const provider = "    equinix:\n"
		if bytes.Count(config, []byte(provider)) != 1 {
			t.Fatalf("not the configuration of one provider:\n%s", config)
		}
		config = bytes.Replace(config, []byte(provider), []byte(setting), 1)
	}
	check(os.WriteFile(herd.Config(), append(slices.Clip(config), "\nroles: [provisioner, updater, operator-api]\n"...), 0o600))
	check(herd.StartPlane(ctx))
	check(herd.AwaitPlane(ctx))
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
	refused := func(m *fleetv1.Machine) bool { return strings.Contains(m.GetReason(), reason) }
	if err := awaitMachines(ctx, herd, refused); err != nil {
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
