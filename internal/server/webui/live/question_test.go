package live

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSlow: an answer that takes too long is an outage that says so.
func TestSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewQuestion(time.Second, 5*time.Second, func(ctx context.Context) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		})
		a, err := q.Answer(t.Context())
		if err != nil || a.Err == nil || a.Err.Error() != "no answer within 5s" {
			t.Errorf("got %v, %v", a.Err, err)
		}
	})
}

// TestQuestion: one question at a time, at most one per interval, and the callers share the answer.
func TestQuestion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked, under := 0, 0
		q := NewQuestion(time.Second, time.Minute, func(context.Context) (int, error) {
			under++
			if under > 1 {
				t.Error("two questions at once")
			}
			time.Sleep(300 * time.Millisecond)
			under--
			asked++
			return asked, nil
		})
		var group sync.WaitGroup
		for range 100 {
			group.Go(func() {
				if a, err := q.Answer(t.Context()); err != nil || a.Value != 1 {
					t.Errorf("got %d, %v", a.Value, err)
				}
			})
		}
		group.Wait()
		time.Sleep(time.Second)
		if a, _ := q.Answer(t.Context()); a.Value != 2 {
			t.Errorf("after the interval: got answer %d", a.Value)
		}
	})
}
