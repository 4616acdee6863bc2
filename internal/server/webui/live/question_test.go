package live

import (
	"context"
	"errors"
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
		q := NewQuestion(Options{Timeout: 5 * time.Second}, time.Second, func(ctx context.Context) (int, error) {
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
		q := NewQuestion(Options{Timeout: time.Minute}, time.Second, func(context.Context) (int, error) {
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

// TestCallersWhoLeave before a costly answer is there have it asked for once: it goes on, and
// whoever comes next has it.
func TestCallersWhoLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked, busy := 0, time.Duration(0)
		q := NewQuestion(Options{Timeout: 5 * time.Second}, time.Second, func(ctx context.Context) (int, error) {
			asked++
			begin := time.Now()
			defer func() { busy += time.Since(begin) }()
			select {
			case <-time.After(4 * time.Second):
				return asked, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}).Costly()
		impatient := func() (Answer[int], error) {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			time.AfterFunc(3*time.Second, leave)
			return q.Answer(ctx)
		}
		if _, err := impatient(); !errors.Is(err, context.Canceled) {
			t.Errorf("the first one left, and has %v", err)
		}
		if a, err := impatient(); err != nil || a.Value != 1 || a.Err != nil {
			t.Errorf("the next one has %+v, %v", a, err)
		}
		for begin := time.Now(); time.Since(begin) < 10*time.Minute; time.Sleep(100 * time.Millisecond) {
			_, _ = impatient()
		}
		if asked > 9 || busy > time.Duration(asked)*4*time.Second {
			t.Errorf("it was asked %d times in ten minutes, which took %s", asked, busy)
		}
		time.Sleep(5 * time.Second)
	})
}

// TestAQuestionEndsWithTheServer: nobody waits for it any more.
func TestAQuestionEndsWithTheServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stopped, begin := make(chan struct{}), time.Now()
		ended := make(chan time.Duration, 1)
		q := NewQuestion(Options{Timeout: time.Minute, Stopped: stopped}, time.Second, func(ctx context.Context) (int, error) {
			<-ctx.Done()
			ended <- time.Since(begin)
			return 0, ctx.Err()
		})
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, leave)
		if _, err := q.Answer(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("who left has %v", err)
		}
		time.AfterFunc(time.Second, func() { close(stopped) })
		if took := <-ended; took != 2*time.Second {
			t.Errorf("it ended after %s", took)
		}
	})
}

// TestAQuestionThatPanics is the failure of whoever asks it: the process goes on, and who comes
// next asks again.
func TestAQuestionThatPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		q := NewQuestion(Options{Timeout: time.Second}, time.Hour, func(context.Context) (int, error) {
			if asked++; asked == 1 {
				panic("a fault of ours")
			}
			return asked, nil
		})
		if _, err := q.Answer(t.Context()); err == nil {
			t.Error("it panicked, and that is no error")
		}
		if a, err := q.Answer(t.Context()); err != nil || a.Value != 2 {
			t.Errorf("got %+v, %v", a, err)
		}
	})
}
