// Package watchtest is the suite that every kind of watched value passes: the contract of package
// watch, case by case.
package watchtest

import (
	"context"
	"sync"
	"testing"

	"github.com/ironherd/ironherd/reconciler/watch"
)

// New returns a value that has not been set, and how to set it. Set returns when the value has been
// accepted.
type New func(t *testing.T) (watch.Value[int], func(int))

// Run runs the suite.
func Run(t *testing.T, make New) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, New){
		"LatestFirst":      latestFirst,
		"WaitsForTheFirst": waitsForTheFirst,
		"Coalesces":        coalesces,
		"EndsWithContext":  endsWithContext,
		"ManyWatchers":     manyWatchers,
		"SlowHoldsUpNone":  slowHoldsUpNone,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, make)
		})
	}
}

func receive(t *testing.T, values <-chan int) int {
	t.Helper()
	select {
	case v, ok := <-values:
		if !ok {
			t.Fatal("the channel was closed")
		}
		return v
	case <-t.Context().Done():
		t.Fatal("nothing was received")
		return 0
	}
}

func latestFirst(t *testing.T, make New) {
	t.Helper()
	value, set := make(t)
	for i := range 5 {
		set(i + 1)
	}
	if got := receive(t, value.Watch(t.Context())); got != 5 {
		t.Errorf("first received: %d, want the latest, 5", got)
	}
}

func waitsForTheFirst(t *testing.T, make New) {
	t.Helper()
	value, set := make(t)
	values := value.Watch(t.Context())
	select {
	case v := <-values:
		t.Fatalf("received %d before anything was set", v)
	default:
	}
	set(7)
	if got := receive(t, values); got != 7 {
		t.Errorf("received %d", got)
	}
	set(8)
	if got := receive(t, values); got != 8 {
		t.Errorf("then received %d", got)
	}
}

// coalesces: who does not receive while much is set gets the last, and nothing that is older than
// what it had.
func coalesces(t *testing.T, make New) {
	t.Helper()
	value, set := make(t)
	values := value.Watch(t.Context())
	set(1)
	last := receive(t, values)
	const final = 200
	for i := 2; i <= final; i++ {
		set(i)
	}
	received := 0
	for last != final {
		got := receive(t, values)
		if received++; got < last {
			t.Fatalf("%d was followed by the older %d", last, got)
		}
		last = got
	}
	t.Logf("%d changes were received as %d", final-1, received)
}

func endsWithContext(t *testing.T, make New) {
	t.Helper()
	value, set := make(t)
	set(1)
	ctx, cancel := context.WithCancel(t.Context())
	taken, untaken := value.Watch(ctx), value.Watch(ctx)
	receive(t, taken)
	cancel()
	for _, values := range []<-chan int{taken, untaken} {
		for n := range 3 {
			_, open := <-values
			if !open {
				break
			}
			if n > 0 {
				t.Error("values come after the context has ended")
			}
		}
	}
}

func manyWatchers(t *testing.T, make New) {
	t.Helper()
	value, set := make(t)
	const watchers, final = 16, 50
	var all sync.WaitGroup
	for range watchers {
		values := value.Watch(t.Context())
		all.Go(func() {
			last := 0
			for v := range values {
				if v < last {
					t.Errorf("%d was followed by %d", last, v)
				}
				if last = v; v == final {
					return
				}
			}
			t.Error("closed before the last value came")
		})
	}
	for i := range final {
		set(i + 1)
	}
	all.Wait()
}

func slowHoldsUpNone(t *testing.T, make New) {
	t.Helper()
	value, set := make(t)
	slow, quick := value.Watch(t.Context()), value.Watch(t.Context())
	for i := range 20 {
		set(i + 1)
		for receive(t, quick) != i+1 { //nolint:revive // what was before may come first
		}
	}
	for last := 0; last != 20; { // one value may have been on its way
		got := receive(t, slow)
		if got < last {
			t.Fatalf("%d was followed by %d", last, got)
		}
		last = got
	}
}
