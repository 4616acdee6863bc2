package provider

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A million calls through the limiter under virtual time. Whatever the callers do (come in bursts,
// give up while they wait, ask for a pause), no window has more calls than limit × window + burst;
// and while there is a backlog, at least 99 % of what the limit allows is used.
func TestAMillionCallsKeepTheLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const (
			calls   = 1_000_000
			spacing = 10 * time.Millisecond
			burst   = 1
			workers = 50
		)
		p := NewPacer(Limits{Spacing: spacing, Patience: time.Minute}, wallClock{})
		begun := time.Now()
		starts := make([]time.Duration, 0, calls)
		var mu sync.Mutex
		var paused time.Duration
		var callers sync.WaitGroup
		for worker := range workers {
			callers.Go(func() {
				random := rand.New(rand.NewPCG(uint64(worker), 1))
				for {
					ctx, cancel := t.Context(), context.CancelFunc(func() {})
					switch random.IntN(100) {
					case 0: // somebody who gives up while waiting must not use up a turn
						ctx, cancel = context.WithCancel(ctx)
						timer := time.AfterFunc(time.Duration(random.IntN(int(workers*spacing))), cancel)
						defer timer.Stop()
					case 1: // a deadline that is too near is refused at once
						ctx, cancel = context.WithTimeout(ctx, spacing)
					}
					err := p.Wait(ctx)
					cancel()
					if err != nil {
						continue
					}
					mu.Lock()
					done := len(starts) == calls
					if !done {
						starts = append(starts, time.Since(begun))
						if len(starts)%100_000 == 0 {
							p.Hold(t.Context(), 30*time.Second)
							paused += 30 * time.Second
						}
					}
					mu.Unlock()
					if done {
						return
					}
				}
			})
		}
		callers.Wait()
		if i := tooMany(starts, spacing, burst); i >= 0 {
			t.Errorf("call %d at %s is one too many in some window before it", i, starts[i])
		}
		took := starts[len(starts)-1] - paused
		if used := float64(calls*spacing) / float64(took); used < 0.99 {
			t.Errorf("only %.2f %% of the limit is used, with a backlog all the time", 100*used)
		} else {
			t.Logf("%d calls in %s, %.2f %% of the limit", calls, took+paused, 100*used)
		}
	})
}

// tooMany returns the first call that is one too many in some window of some length; -1: none is.
// A call may start only if a bucket of that burst, filled at that rate, has one left. That is the
// same as the rule for all windows.
func tooMany(starts []time.Duration, spacing time.Duration, burst int) int {
	bucket, last := float64(burst), time.Duration(0)
	for i, at := range starts {
		bucket = min(bucket+float64(at-last)/float64(spacing), float64(burst)) - 1
		if last = at; bucket < -1e-6 {
			return i
		}
	}
	return -1
}

// The check itself must see what breaks the rule.
func TestTooMany(t *testing.T) {
	t.Parallel()
	starts := []time.Duration{0, 0, 0, time.Second, 2 * time.Second, 5 * time.Second, 5 * time.Second, 5 * time.Second, 6 * time.Second}
	if i := tooMany(starts, time.Second, 3); i >= 0 {
		t.Errorf("call %d is allowed", i)
	}
	for _, breach := range []struct {
		spacing time.Duration
		burst   int
		call    int
	}{{time.Second, 2, 2}, {1001 * time.Millisecond, 3, 3}} {
		if i := tooMany(starts, breach.spacing, breach.burst); i != breach.call {
			t.Errorf("with %+v, call %d is the first that is too many", breach, i)
		}
	}
}

// Ten minutes of a total outage: the provider gets at most a tenth more requests than there is
// fresh demand, whether much is asked of it or little. So it is where a part of the calls fail.
func TestTenMinutesOfOutage(t *testing.T) {
	t.Parallel()
	for _, outage := range []struct {
		status int
		every  time.Duration
		// share of the calls that fail.
		share float64
	}{
		{0, 100 * time.Millisecond, 1},
		{http.StatusServiceUnavailable, 100 * time.Millisecond, 1},
		{http.StatusTooManyRequests, 100 * time.Millisecond, 1},
		{http.StatusInternalServerError, 2 * time.Second, 1},
		{http.StatusInternalServerError, 100 * time.Millisecond, 0.5},
		{http.StatusInternalServerError, 100 * time.Millisecond, 0.1},
		{http.StatusInternalServerError, 100 * time.Millisecond, 0.08},
	} {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			status, server := outage.status, new(stubServer)
			server.answer = func(number int, request *http.Request) (*http.Response, error) {
				if random.Float64() < outage.share {
					return failing(status).answer(1, request)
				}
				return reply(http.StatusOK, "{}"), nil
			}
			transport := newTestTransport(server, Limits{InFlight: 100}, nil)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			fresh := 0
			var callers sync.WaitGroup
			for ctx.Err() == nil { // whatever becomes of those before
				fresh++
				callers.Go(func() { _, _ = call(ctx, t, transport, http.MethodGet, "") })
				time.Sleep(outage.every)
			}
			callers.Wait()
			sent := server.count()
			t.Logf("%+v: %d requests for %d calls, %.3f times", outage, sent, fresh, float64(sent)/float64(fresh))
			allowed := 1.1 * float64(fresh)
			if outage.share < 1 { // besides what the budget has to begin with, and what refills
				allowed += budgetFloor + float64(10*time.Minute/budgetRefill)
			}
			if float64(sent) > allowed {
				t.Errorf("%+v: %d calls became %d requests", outage, fresh, sent)
			}
			if sent < fresh {
				t.Errorf("%+v: only %d of %d calls were made at all", outage, sent, fresh)
			}
		})
	}
}
