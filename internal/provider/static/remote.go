package static

import (
	"bytes"
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
)

// remote is a list behind a URL. At most one fetch is under way; all who ask meanwhile wait for it.
type remote struct {
	name  string
	fetch func(context.Context) ([]byte, error)

	mu sync.Mutex
	// data is the list that was fetched last, says what it says, and at when it was fetched.
	data []byte
	says *list
	at   time.Time
	// fault is how the last fetch failed; nil when it did not.
	fault  error
	failed time.Time
	// under is the fetch that is under way; nil: none is.
	under *flight
}

// flight is one fetch. It has a context of its own: who began it may give up before the others.
type flight struct {
	cancel context.CancelFunc
	// waiting counts those who wait for it. The last one who gives up ends it.
	waiting int
	done    chan struct{}
	// Set before done is closed.
	says  *list
	fault error
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
	select {
	case <-f.done:
		return f.says, f.fault
	case <-ctx.Done():
		r.leave(f)
		return nil, &fleet.Error{Kind: fleet.KindTimeout, Message: "fetch host list " + r.name, Err: fleet.ContextError(ctx)}
	}
}

// begin begins a fetch. The caller has the lock.
func (r *remote) begin(ctx context.Context) {
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchLimit)
	f := &flight{cancel: cancel, done: make(chan struct{})}
	r.under = f
	go func() {
		defer cancel()
		data, err := r.fetch(own)
		r.mu.Lock()
		defer r.mu.Unlock()
		f.says, f.fault = r.take(data, err)
		close(f.done)
		if r.under != f { // nobody waits for it any more
			return
		}
		r.under, r.fault = nil, f.fault
		if f.fault == nil {
			r.data, r.says, r.at = data, f.says, time.Now()
		} else {
			r.failed = time.Now()
		}
	}()
}

// take returns what the answer of a fetch says. The caller has the lock.
func (r *remote) take(data []byte, err error) (*list, error) {
	switch {
	case err != nil:
		return nil, err
	case r.says != nil && bytes.Equal(data, r.data):
		return r.says, nil
	}
	return newList(r.name, data)
}

// leave has one less wait for a fetch.
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
