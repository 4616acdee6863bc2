package static

import (
	"context"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	// fetchAge is how old a list from a URL may be that a question about one host is answered from: so
	// thousands of them do not fetch it thousands of times.
	fetchAge = 10 * time.Second
	// failureAge is for how long such questions are answered with the error of the last fetch.
	failureAge = 2 * time.Second
	// fetchLimit bounds one fetch, with its retries.
	fetchLimit = time.Minute
	// fetches is how often a list is fetched that says something else each time.
	fetches = 3
)

// remote is a list behind a URL. At most one reading is under way; all who ask meanwhile wait for
// it.
//
// A server may serve half of a file that is being written. So what is new in a list counts when it
// was fetched again, a moment later (pause), and says the same.
type remote struct {
	name  string
	fetch func(context.Context) ([]byte, error)
	pause time.Duration

	mu sync.Mutex
	// says is the last list that counted, and at when it was fetched.
	says *list
	at   time.Time
	// fault is how the last reading failed; nil when it did not.
	fault  error
	failed time.Time
	// under is the reading that is under way; nil: none is.
	under *flight
}

// read returns the list as of now, or as of a moment ago where that is recent enough.
func (r *remote) read(ctx context.Context, recent bool) (*list, error) {
	r.mu.Lock()
	switch {
	case recent && r.says != nil && time.Since(r.at) < fetchAge:
		defer r.mu.Unlock()
		return r.says, nil
	case recent && r.fault != nil && time.Since(r.failed) < failureAge:
		defer r.mu.Unlock()
		return nil, r.fault
	}
	if r.under == nil {
		r.begin(ctx)
	}
	f := r.under
	f.waiting++
	r.mu.Unlock()
	defer r.leave(f)
	return f.wait(ctx, "fetch host list "+r.name)
}

// begin begins a reading. The caller has the lock.
func (r *remote) begin(ctx context.Context) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &flight{cancel: cancel, done: make(chan struct{})}
	r.under = f
	was := r.says
	go func() {
		defer cancel()
		says, at, err := r.look(own, was)
		r.mu.Lock()
		defer r.mu.Unlock()
		f.says, f.fault = says, err
		close(f.done)
		if r.under != f { // nobody waits for it any more
			return
		}
		r.under, r.fault = nil, err
		if err == nil {
			r.says, r.at = says, at
		} else {
			r.failed = time.Now()
		}
	}()
}

// look fetches the list until it says what counted before, or the same twice. It comes with when it
// was fetched.
func (r *remote) look(ctx context.Context, was *list) (says *list, at time.Time, err error) {
	var before *list // what the fetch before this one said
	for i := range fetches {
		if i > 0 {
			select {
			case <-time.After(r.pause):
			case <-ctx.Done():
				return nil, at, fleet.ContextError(ctx)
			}
		}
		data, err := r.once(ctx)
		at = time.Now()
		if err != nil {
			return nil, at, err
		}
		switch {
		case was.holds(data):
			return was, at, nil
		case before.holds(data):
			return before, at, nil
		}
		says, err := newList(r.name, data)
		if err != nil || says.same(was) || says.same(before) {
			return says, at, err
		}
		before = says
	}
	return nil, at, fleet.Errorf(fleet.KindTemporary, "host list %s says something else each time that it is fetched", r.name)
}

// once fetches the list once.
func (r *remote) once(ctx context.Context) ([]byte, error) {
	limited, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	return r.fetch(limited)
}

// leave has one less wait for a reading. The last one to leave ends it.
func (r *remote) leave(f *flight) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.waiting--; f.waiting > 0 {
		return
	}
	f.cancel()
	if r.under == f {
		r.under = nil
	}
}
