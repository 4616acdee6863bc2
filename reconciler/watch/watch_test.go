package watch_test

import (
	"context"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/ironherd/ironherd/internal/reconciler/watchtest"
	"github.com/ironherd/ironherd/reconciler/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	t.Parallel()
	watchtest.Run(t, func(*testing.T) (watch.Value[int], func(int)) {
		var value watch.Memory[int]
		return &value, value.Set
	})
}

func TestGet(t *testing.T) {
	t.Parallel()
	var value watch.Memory[string]
	if _, ok := value.Get(); ok {
		t.Error("there is a value before Set")
	}
	value.Set("a")
	if v, ok := value.Get(); !ok || v != "a" {
		t.Errorf("got %q, %v", v, ok)
	}
}

// TestWaitingValueIsReplaced: what nobody has received yet is not what is received once something
// newer has been set.
func TestWaitingValueIsReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var value watch.Memory[int]
		value.Set(1)
		values := value.Watch(ctx)
		synctest.Wait()
		value.Set(2)
		synctest.Wait()
		if got := <-values; got != 2 {
			t.Errorf("received %d, though 2 was set before", got)
		}
	})
}
