package server

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// TestTurnsAreFair: who waits with hundreds keeps nobody else waiting, and nothing is remembered of
// those who have left.
func TestTurnsAreFair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns[string](3, 2)
		var mu sync.Mutex
		var inside []string
		var callers sync.WaitGroup
		release := map[string]chan struct{}{"greedy": make(chan struct{}), "second": make(chan struct{}), "third": make(chan struct{})}
		enter := func(ctx context.Context, owner string) {
			callers.Go(func() {
				leave, err := turns.Enter(ctx, owner)
				if err != nil {
					return
				}
				mu.Lock()
				inside = append(inside, owner)
				mu.Unlock()
				<-release[owner]
				mu.Lock()
				i := slices.Index(inside, owner)
				inside = slices.Delete(inside, i, i+1)
				mu.Unlock()
				leave()
			})
		}
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if got := slices.Sorted(slices.Values(inside)); !slices.Equal(got, want) {
				t.Errorf("inside are %q, want %q", got, want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		for range 400 {
			enter(ctx, "greedy")
		}
		expect("greedy", "greedy")
		enter(t.Context(), "second")
		enter(t.Context(), "second")
		expect("greedy", "greedy", "second")
		enter(t.Context(), "third")
		expect("greedy", "greedy", "second")
		release["greedy"] <- struct{}{}
		expect("greedy", "second", "second")
		release["greedy"] <- struct{}{}
		expect("second", "second", "third")
		cancel() // those who wait go
		for _, r := range release {
			close(r)
		}
		callers.Wait()
		if len(turns.owners) != 0 || len(turns.all) != 0 {
			t.Errorf("%d owners are remembered, and %d are inside", len(turns.owners), len(turns.all))
		}
	})
}
