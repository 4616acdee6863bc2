package fleetapi_test

import (
	"sync"
	"testing"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/token"
)

// slowHands observes that something was written of a plan, and takes long over it.
type slowHands struct {
	kind            string
	begun, released chan struct{}
}

func (s *slowHands) Transaction(kind string, _ time.Duration, _ int, _ error) {
	if kind == s.kind {
		s.begun <- struct{}{}
		<-s.released
	}
}

func (s *slowHands) Outcome(_ fleet.Process, _ string, _ time.Duration) {}

func (s *slowHands) Happened(bmdb.Happening, string) {}

// TestWhatIsWrittenOfAPlanKeepsNoPlanWaiting: a plan is kept when the database takes changes, and
// carrying it out may last for minutes. Whoever has that done can make another plan meanwhile.
func TestWhatIsWrittenOfAPlanKeepsNoPlanWaiting(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"create plan", "carry out plan"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			hands := &slowHands{kind: kind, begun: make(chan struct{}, 4), released: make(chan struct{})}
			release := sync.OnceFunc(func() { close(hands.released) })
			o := newFixtureWith(t, nil, hands)
			defer release()
			o.machines(2)
			ended := make(chan error, 2)
			for range cap(ended) {
				go func() {
					_, err := o.client(token.Operator).CreatePlan(t.Context(), &fleetv1.CreatePlanRequest{
						Verb: "quarantine", Machines: []string{"host-0", "host-1"}, Reason: "the rack moves", Confirm: true,
					})
					ended <- err
				}()
			}
			for range cap(ended) {
				select {
				case <-hands.begun:
				case err := <-ended:
					t.Fatalf("a plan has ended while the other one is written: %v", err)
				}
			}
			release()
			for range cap(ended) {
				o.must(<-ended)
			}
		})
	}
}
