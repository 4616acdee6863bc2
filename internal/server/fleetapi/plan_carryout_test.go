package fleetapi_test

import (
	"testing"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/token"
)

// slowHands observes that part of a plan was carried out, and takes long over it.
type slowHands struct {
	begun, released chan struct{}
}

func (s *slowHands) Transaction(kind string, _ time.Duration, _ int, _ error) {
	if kind == "carry out plan" {
		s.begun <- struct{}{}
		<-s.released
	}
}

func (s *slowHands) Outcome(_ fleet.Process, _ string, _ time.Duration) {}

func (s *slowHands) Happened(bmdb.Happening, string) {}

// TestWhatIsCarriedOutKeepsNoPlanWaiting: that may last for minutes, and whoever has it done can
// make another plan meanwhile.
func TestWhatIsCarriedOutKeepsNoPlanWaiting(t *testing.T) {
	t.Parallel()
	hands := &slowHands{begun: make(chan struct{}, 2), released: make(chan struct{})}
	o := newFixtureWith(t, nil, hands)
	o.machines(2)
	client := o.client(token.Operator)
	request := func(confirm bool) *fleetv1.CreatePlanRequest {
		return &fleetv1.CreatePlanRequest{Verb: "quarantine", Machines: []string{"host-0", "host-1"}, Reason: "the rack moves", Confirm: confirm}
	}
	carriedOut := make(chan error)
	go func() {
		_, err := client.CreatePlan(t.Context(), request(true))
		carriedOut <- err
	}()
	<-hands.begun
	if _, err := client.CreatePlan(t.Context(), request(false)); err != nil {
		t.Errorf("another plan: %v", err)
	}
	close(hands.released)
	o.must(<-carriedOut)
}
