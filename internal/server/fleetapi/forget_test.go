package fleetapi_test

import (
	"testing"

	"connectrpc.com/connect"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/token"
)

// TestForgetProviderIsRefused: in the first minute of a control plane nobody knows who serves it.
func TestForgetProviderIsRefused(t *testing.T) {
	t.Parallel()
	client := newFixture(t).client(token.Operator)
	for want, asked := range map[connect.Code]*fleetv1.ForgetProviderRequest{
		connect.CodeNotFound:           {Provider: "nowhere", Reason: "r"},
		connect.CodeInvalidArgument:    {Provider: "lab"},
		connect.CodeFailedPrecondition: {Provider: "lab", Reason: "it is sold"},
	} {
		if _, err := client.ForgetProvider(t.Context(), asked); connect.CodeOf(err) != want {
			t.Errorf("%v: %v", asked, err)
		}
	}
}
