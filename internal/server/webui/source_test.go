package webui

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
)

// sessionsFailOnce is a client whose first answer about sessions after it is told so is a failure,
// which takes some seconds.
type sessionsFailOnce struct {
	fleetv1connect.FleetServiceClient
	fail chan struct{}
}

func (s sessionsFailOnce) ListSessions(ctx context.Context, r *fleetv1.ListSessionsRequest) (*fleetv1.ListSessionsResponse, error) {
	select {
	case <-s.fail:
		time.Sleep(4 * time.Second)
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("the database does not answer"))
	default:
		return s.FleetServiceClient.ListSessions(ctx, r)
	}
}

// TestSessionsThatFailOnce: what is asked for rarely fails for itself. The rest of the overview
// goes on, and says nothing of an outage while that failure stands.
func TestSessionsThatFailOnce(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"sessions were known": true, "none were": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				stub := smallFleet()
				client := sessionsFailOnce{inBubble(stub), make(chan struct{}, 1)}
				if !known {
					client.fail <- struct{}{}
				}
				v := watch(t, New(client, Options{}), "/live/")
				defer v.leave()
				if known {
					pass(2 * time.Second)
					v.events(t)
					client.fail <- struct{}{}
				}
				pass(6 * time.Second)
				shown := lastSwaps(t, v)
				if strings.Contains(shown["notice"], "does not answer") {
					t.Errorf("sessions alone failed, and the page says: %s", shown["notice"])
				}
				if html := shown["sessions"]; !strings.Contains(html, "the database does not answer") || strings.Contains(html, "No component is alive") ||
					strings.Contains(html, "cp-1") != known {
					t.Errorf("sessions are shown as: %s", html)
				}
				stub.change(func() { stub.summary.Machines++ })
				pass(time.Second)
				if got := v.swapped(t); !slices.Equal(got, []string{"fleet"}) {
					t.Errorf("a machine more, and %v was sent", got)
				}
				pass(time.Minute)
				if html := lastSwaps(t, v)["sessions"]; !strings.Contains(html, "cp-1") || strings.Contains(html, "the database does not answer") {
					t.Errorf("they are answered again, and shown as: %s", html)
				}
			})
		})
	}
}

// lastSwaps returns the newest content of each element that was sent since the last call.
func lastSwaps(t *testing.T, v *viewer) map[string]string {
	t.Helper()
	shown := map[string]string{}
	for _, e := range v.events(t) {
		for _, s := range e.Swaps {
			shown[s.ID] = s.HTML
		}
	}
	return shown
}

// slowLists is a client whose answer about machines takes a second.
type slowLists struct {
	fleetv1connect.FleetServiceClient
}

func (s slowLists) ListMachines(ctx context.Context, r *fleetv1.ListMachinesRequest) (*fleetv1.ListMachinesResponse, error) {
	select {
	case <-time.After(time.Second):
		return s.FleetServiceClient.ListMachines(ctx, r)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestACheapListBesideWhatIsSlow: what it waits for does not count as its own cost.
func TestACheapListBesideWhatIsSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stub := smallFleet()
		v := watch(t, New(slowSummaries{inBubble(stub)}, Options{Stopped: t.Context().Done()}), "/live/machines?label=role")
		defer v.leave()
		pass(time.Minute)
		if n := stub.count("ListMachines"); n < 10 {
			t.Errorf("machines were listed %d times in a minute", n)
		}
	})
}

// slowSummaries is a fleet whose summary takes three seconds.
type slowSummaries struct {
	fleetv1connect.FleetServiceClient
}

func (s slowSummaries) GetSummary(ctx context.Context, r *fleetv1.GetSummaryRequest) (*fleetv1.GetSummaryResponse, error) {
	select {
	case <-time.After(3 * time.Second):
		return s.FleetServiceClient.GetSummary(ctx, r)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestCostlyLists: machines of a location, or with a label, are looked for among all. A page of
// them is loaded the more rarely the longer that takes, and others are not.
func TestCostlyLists(t *testing.T) {
	t.Parallel()
	for target, most := range map[string]int{"?label=role": 3, "?location=rack": 3, "": 32, "?state=silent": 32} {
		t.Run(target, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				stub := smallFleet()
				v := watch(t, New(slowLists{inBubble(stub)}, Options{Stopped: t.Context().Done()}), "/live/machines"+target)
				defer v.leave()
				pass(time.Minute)
				if n := stub.count("ListMachines"); n > most || n < most-2 {
					t.Errorf("machines were listed %d times in a minute", n)
				}
			})
		})
	}
}
