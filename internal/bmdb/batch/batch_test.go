package batch_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/ironherd/ironherd/internal/bmdb/batch"
)

// desk commits what is brought to its queue, batch by batch, each when it is let.
type desk struct {
	queue   batch.Queue[int]
	batches [][]int
	let     chan struct{}
}

// answer is what Do returned.
type answer struct {
	committed bool
	err       error
}

func newDesk() *desk { return &desk{let: make(chan struct{})} }

// bring brings an item, and returns when everybody waits.
func (d *desk) bring(ctx context.Context, item int, commit func(ctx context.Context, items []int) []bool) <-chan answer {
	c := make(chan answer, 1)
	go func() {
		committed, err := d.queue.Do(ctx, item, 3, commit)
		c <- answer{committed, err}
	}()
	synctest.Wait()
	return c
}

// all commits every item.
func (d *desk) all(ctx context.Context, items []int) []bool {
	d.batches = append(d.batches, items)
	<-d.let
	done := make([]bool, len(items))
	for i := range done {
		done[i] = ctx.Err() == nil
	}
	return done
}

func (d *desk) want(t *testing.T, batches ...[]int) {
	t.Helper()
	if !slices.EqualFunc(d.batches, batches, slices.Equal[[]int]) {
		t.Errorf("batches %v, want %v", d.batches, batches)
	}
}

// TestTogether: who comes first commits alone and at once; those who come meanwhile are committed
// together, in their order, at most as many as the limit says. What a batch leaves is told to the
// one who brought it.
func TestTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		butThree := func(ctx context.Context, items []int) []bool {
			done := d.all(ctx, items)
			for i, item := range items {
				done[i] = done[i] && item != 3
			}
			return done
		}
		var answers []<-chan answer
		for item := range 5 {
			answers = append(answers, d.bring(t.Context(), item, butThree))
		}
		d.want(t, []int{0})
		for range 3 {
			d.let <- struct{}{}
		}
		for item, c := range answers {
			if a := <-c; a.committed != (item != 3) || a.err != nil {
				t.Errorf("item %d: %+v", item, a)
			}
		}
		d.want(t, []int{0}, []int{1, 2, 3}, []int{4})
	})
}

// TestWithdrawn: whoever gives up while it waits is not committed, and says why; the others are.
func TestWithdrawn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		tired := errors.New("tired")
		ctx, cancel := context.WithCancelCause(t.Context())
		first := d.bring(t.Context(), 0, d.all)
		gone := d.bring(ctx, 1, d.all)
		last := d.bring(t.Context(), 2, d.all)
		cancel(tired)
		if a := <-gone; a.committed || !errors.Is(a.err, tired) {
			t.Errorf("withdrawn: %+v", a)
		}
		close(d.let)
		for _, c := range []<-chan answer{first, last} {
			if a := <-c; !a.committed || a.err != nil {
				t.Errorf("%+v", a)
			}
		}
		d.want(t, []int{0}, []int{2})
	})
}

// TestTheContextOfALeaderHasEnded: it is too late to withdraw. Its batch is committed, under a
// context that has not ended, and it is told so.
func TestTheContextOfALeaderHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		ctx, cancel := context.WithCancel(t.Context())
		first := d.bring(t.Context(), 0, d.all)
		leader := d.bring(ctx, 1, d.all)
		other := d.bring(t.Context(), 2, d.all)
		d.let <- struct{}{} // now the leader commits for both
		synctest.Wait()
		cancel()
		close(d.let)
		for _, c := range []<-chan answer{first, leader, other} {
			if a := <-c; !a.committed || a.err != nil {
				t.Errorf("%+v", a)
			}
		}
		d.want(t, []int{0}, []int{1, 2})
	})
}

// TestAPanicOfCommit: it is the leader's. The others of the batch are told that they were not
// committed, and whoever comes next is not kept waiting.
func TestAPanicOfCommit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		first := d.bring(t.Context(), 0, d.all)
		panicked := make(chan any, 1)
		go func() {
			defer func() { panicked <- recover() }()
			_, _ = d.queue.Do(t.Context(), 1, 3, func(context.Context, []int) []bool { panic("of commit") })
		}()
		synctest.Wait()
		other := d.bring(t.Context(), 2, d.all)
		close(d.let)
		if a := <-first; !a.committed || a.err != nil {
			t.Errorf("before the panic: %+v", a)
		}
		if got := <-panicked; got != "of commit" {
			t.Errorf("recovered %v", got)
		}
		if a := <-other; a.committed || a.err != nil {
			t.Errorf("in the batch that panicked: %+v", a)
		}
		if a := <-d.bring(t.Context(), 3, d.all); !a.committed || a.err != nil {
			t.Errorf("after the panic: %+v", a)
		}
	})
}
