package watch_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/ironherd/ironherd/internal/reconciler/watch"
	"github.com/ironherd/ironherd/internal/reconciler/watch/watchtest"
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
