package fleetapi_test

import (
	"context"
	"strings"
	"testing"

	"connectrpc.com/connect"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/token"
)

// TestAStopSaysHowFarAPlanIs: a confirmation that a stop of the control plane cuts off may be asked
// for again, and the caller learns that.
func TestAStopSaysHowFarAPlanIs(t *testing.T) {
	t.Parallel()
	meanwhile := &between{kind: "carry out plan"}
	o := newFixtureWith(t, nil, meanwhile)
	o.machines(3)
	client := o.client(token.Operator, connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			r.Header().Set("Accept", "text/event-stream") // such a request is cut off at once
			return next(ctx, r)
		}
	})))
	var call context.Context
	o.called = func(ctx context.Context) { call = ctx }
	meanwhile.do = func() {
		o.stop()
		<-call.Done()
	}
	_, err := client.CreatePlan(t.Context(), &fleetv1.CreatePlanRequest{
		Verb: "quarantine", States: []string{"provided"}, Limit: 1000, Reason: "the rack moves", Confirm: true,
	})
	if code(err) != connect.CodeUnavailable {
		t.Fatalf("%s: %v", code(err), err)
	}
	if told := message(err); !strings.Contains(told, " was carried out for 1 of 3 machines; confirm it again to go on: ") ||
		!strings.HasSuffix(told, ": the control plane is being stopped: ask again") {
		t.Errorf("it says: %s", told)
	}
}
