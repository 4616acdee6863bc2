package demo_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/demo"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestInstallsAFleetAmongOthers: answers lag, somebody else takes capacity first, and the token
// does not count for a while. In the end each machine is there once, and nothing else is.
func TestInstallsAFleetAmongOthers(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]string{
		"get lags behind lists":   "stale-get=30%:1s",
		"somebody else is faster": "capacity-stolen=#1+3:200ms",
		"the token is revoked":    "token-revoked=#5+60:2s",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options(t)
			o.Faults = faults
			s := installed(t, o)
			w := s.World
			if s.Installed != 6 || w.Devices != 6 || w.InstallsVerified != 6 || w.InstallsRejected+w.InstalledMoreThanOnce+w.DuplicateDevices != 0 {
				t.Errorf("%+v", s)
			}
			if len(w.Faults) != 1 || w.Faults[0].Fired == 0 {
				t.Errorf("nothing went wrong: %+v", w.Faults)
			}
		})
	}
}

// busy reports whether an error is that of a host that has too much to do, which passes.
func busy(err error) bool {
	return slices.Contains([]connect.Code{connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeResourceExhausted}, connect.CodeOf(err))
}

// until asks until the answer is yes.
func until(ctx context.Context, yes func() (bool, error)) error {
	for {
		if ok, err := yes(); ok || err != nil && !busy(err) {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// TestADeviceVanishes: the control plane says so, and makes no other in its place until a person
// has looked, whatever the API answers for what is gone.
func TestADeviceVanishes(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]string{"404": "", "403": ",gone-is-403=100%"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vanishes(t, "device-vanishes=#1:500ms"+more)
		})
	}
}

func vanishes(t *testing.T, faults string) {
	t.Helper()
	o := options(t)
	o.Machines, o.Faults = 3, faults
	run(t, o, func(ctx context.Context, _ *demo.Demo, client fleetv1connect.FleetServiceClient) error {
		var found *fleetv1.Discrepancy
		err := until(ctx, func() (bool, error) {
			answer, err := client.ListDiscrepancies(ctx, &fleetv1.ListDiscrepanciesRequest{})
			if err != nil || len(answer.GetDiscrepancies()) == 0 {
				return false, err
			}
			found = answer.GetDiscrepancies()[0]
			return true, nil
		})
		if err != nil {
			return err
		}
		if found.GetKind() != string(fleet.DiscrepancyMissingMachine) || found.GetMachineId() == "" || found.GetRemedy() == "" {
			t.Errorf("found %v", found)
		}
		// In the end it counts as missing, and there is nothing in its place.
		return until(ctx, func() (bool, error) {
			answer, err := client.ListMachines(ctx, &fleetv1.ListMachinesRequest{})
			if len(answer.GetMachines()) != 3 && err == nil {
				t.Errorf("machines %v", answer.GetMachines())
			}
			return slices.ContainsFunc(answer.GetMachines(), func(m *fleetv1.Machine) bool {
				return m.GetId() == found.GetMachineId() && m.GetState() == string(fleet.StateMissing)
			}), err
		})
	})
}

// TestAnImageWithAHostKeyOfItsOwn: nothing is sent to the machine until a person has accepted the
// key that it shows.
func TestAnImageWithAHostKeyOfItsOwn(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Machines, o.Faults = 1, "user-data-ignored=#1"
	run(t, o, func(ctx context.Context, d *demo.Demo, client fleetv1connect.FleetServiceClient) error {
		var machine string
		var keys *fleetv1.GetHostKeysResponse
		err := until(ctx, func() (bool, error) {
			answer, err := client.ListMachines(ctx, &fleetv1.ListMachinesRequest{})
			if err != nil || len(answer.GetMachines()) == 0 {
				return false, err
			}
			machine = answer.GetMachines()[0].GetId()
			keys, err = client.GetHostKeys(ctx, &fleetv1.GetHostKeysRequest{Machine: machine})
			return keys.GetRefused() != nil, err
		})
		if err != nil {
			return err
		}
		if keys.GetSource() != string(fleet.HostKeyInjected) || len(keys.GetKnown()) != 1 || keys.GetKnown()[0].GetKey() == keys.GetRefused().GetKey() {
			t.Errorf("keys %v", keys)
		}
		explained, err := client.ExplainMachine(ctx, &fleetv1.ExplainMachineRequest{Machine: machine})
		if err != nil {
			return err
		}
		accept := "ironherd machine host-key accept " + machine + " " + keys.GetRefused().GetFingerprint()
		if text := explained.String(); !strings.Contains(text, accept) || !strings.Contains(text, "inject_host_key") {
			t.Errorf("it is explained as %s", text)
		}
		_, err = client.AcceptHostKey(ctx, &fleetv1.AcceptHostKeyRequest{Machine: machine, Fingerprint: keys.GetRefused().GetFingerprint(), Reason: "a test"})
		if err != nil {
			return err
		}
		_, err = d.WaitInstalled(ctx, client, func(demo.View) {})
		return err
	})
}
