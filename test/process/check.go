package process

import (
	"context"
	"errors"
	"fmt"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

// Check compares world and control plane once every machine is installed. There must be exactly one
// device for each machine and no other, and each must have been installed exactly once. Check
// returns every difference.
func (h *Herd) Check(ctx context.Context) error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	want := func(what string, got, want int) {
		if got != want {
			fault("%s: %d, want %d", what, got, want)
		}
	}
	status, err := h.Status(ctx)
	if err != nil {
		return err
	}
	want("devices at the provider", status.Devices, h.Machines)
	want("devices with the token of another", status.DuplicateDevices, 0)
	want("installed systems that came up", status.HostStates["installed"], h.Machines)
	want("installed systems whose disk was right", status.InstallsVerified, h.Machines)
	want("installed systems whose disk was wrong", status.InstallsRejected, 0)
	want("machines that were installed more than once", status.InstalledMoreThanOnce, 0)
	want("installed systems that were heard", status.UpAcknowledged, h.Machines)

	client := h.Client()
	summary, err := client.GetSummary(ctx, &fleetv1.GetSummaryRequest{})
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	want("machines", int(summary.GetMachines()), h.Machines)
	want("machines that are installed", int(inState(summary, "installed")), h.Machines)
	want("discrepancies", int(summary.GetDiscrepancies()), 0)
	list, err := client.ListMachines(ctx, &fleetv1.ListMachinesRequest{PageSize: 1000})
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	ids := map[string]string{}
	for _, m := range list.GetMachines() {
		if m.GetInstallGeneration() != 1 {
			fault("machine %s has install generation %d", m.GetId(), m.GetInstallGeneration())
		}
		if other, twice := ids[m.GetProviderId()]; twice || m.GetProviderId() == "" {
			fault("machines %s and %s are both %q at the provider", m.GetId(), other, m.GetProviderId())
		}
		ids[m.GetProviderId()] = m.GetId()
	}
	return errors.Join(errs...)
}

// Settle repeats Check until it finds nothing, for at most three minutes. The world may record that
// an installed system is up a moment after the control plane has.
func (h *Herd) Settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	var last error
	for {
		err := h.Check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		if wait(ctx, 500*time.Millisecond) != nil {
			return last
		}
	}
}

// CheckDatabase checks the database of a control plane that has stopped.
func (h *Herd) CheckDatabase(ctx context.Context) error {
	code, stdout, stderr := Run(ctx, h.Ironherd, "db", "check", "--config", h.Config())
	if code != 0 {
		return fmt.Errorf("ironherd db check: exit code %d: %s%s", code, stdout, stderr)
	}
	return nil
}
