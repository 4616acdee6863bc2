package fleetapi_test

import (
	"testing"

	"connectrpc.com/connect"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/token"
)

// TestTheAPIIsAsItsDescriptionSays: by what a machine is named, and that on the loopback address,
// too, nobody reads without a token.
func TestTheAPIIsAsItsDescriptionSays(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	id := string(o.machines(1)[0])
	asked := func(client fleetv1connect.FleetServiceClient, machine string) error {
		_, err := client.GetHostKeys(t.Context(), &fleetv1.GetHostKeysRequest{Machine: machine})
		return err
	}
	for _, machine := range []string{id, id[:13], "host-0", "lab/id-host-0"} {
		if err := asked(o.client(token.Viewer), machine); err != nil {
			t.Errorf("%s: %v", machine, err)
		}
	}
	if err := asked(o.client(token.Viewer), "id-host-0"); code(err) != connect.CodeNotFound {
		t.Errorf("an ID of a provider, and nobody knows of which: %v", err)
	}
	if _, err := o.clientWith("").GetVersion(t.Context(), &fleetv1.GetVersionRequest{}); code(err) != connect.CodeUnauthenticated {
		t.Errorf("without a token: %v", err)
	}
	if _, err := o.client(token.Viewer).CreatePlan(t.Context(), &fleetv1.CreatePlanRequest{}); code(err) != connect.CodePermissionDenied {
		t.Errorf("a viewer plans: %v", err)
	}
}
