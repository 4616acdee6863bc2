package provisioner_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// counting counts how often it is asked whether a request may be sent.
type counting struct {
	*shepherdtest.FakeProvider
	asked atomic.Int64
}

func (c *counting) Create(ctx context.Context, request provider.CreateRequest) (provider.Entry, error) {
	before := request.BeforeCall
	request.BeforeCall = func(ctx context.Context) error {
		c.asked.Add(1)
		return before(ctx)
	}
	return c.FakeProvider.Create(ctx, request)
}

// TestCreationRateOfWhatWaited is I10: creations that wait before their requests, as for their turn
// to call the provider, keep the rate when the wait is over, but for half an interval. So does
// whoever comes after them. Each is put off once at most.
func TestCreationRateOfWhatWaited(t *testing.T) {
	t.Parallel()
	for _, parallelism := range []int{1, 4} {
		for _, burst := range []int{1, 3} {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 10)
				rate := fleet.Rate{Every: 5 * time.Second, Burst: burst}
				b.config.CreateRate, b.config.CreateParallelism = rate, parallelism
				c := &counting{FakeProvider: b.fake}
				b.provider = c
				b.restart()
				began := time.Now()
				var begun atomic.Int64
				b.fake.Hook = func(point shepherdtest.Point, _ fleet.CapacityID) error {
					if point == shepherdtest.Creating && begun.Add(1) > 1 { // the first goes at once
						time.Sleep(time.Until(began.Add(time.Minute)) + time.Second)
					}
					return nil
				}
				b.pass()
				b.agree(10)
				b.keepsRateBut(rate, rate.Every/2)
				if n := c.asked.Load(); n > 20 {
					t.Errorf("%d at once: ten requests were put off %d times", parallelism, n-10)
				}
				if creates := b.fake.Creates(); creates[9].Sub(creates[0]) > 2*time.Minute {
					t.Errorf("%d at once: ten creations took %s", parallelism, creates[9].Sub(creates[0]))
				}
			})
		}
	}
}
