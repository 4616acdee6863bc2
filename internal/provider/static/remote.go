package static

import (
	"context"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

const (
	// fetchAge is how old a list from a URL may be that a question about one host is answered from: so
	// thousands of them do not fetch it thousands of times.
	fetchAge = 10 * time.Second
	// standsFor is for how many spacings, where these are longer than fetchAge, the list that counted
	// last answers such questions while nothing newer can be had: nobody may fetch it yet, or a fetch
	// failed, or said something new, which the next one confirms.
	standsFor = 3
	// patience is how long such a question waits for a fetch where that list may answer instead. The
	// fetch goes on after it, and others do not wait for it: a server may need longer each time.
	patience = 10 * time.Second
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
// A server may serve half of a file that is being written. So the rule is: what says the same as
// the list that counted before counts at once, and what is new counts when a second fetch, a moment
// after the first one (pause), says the same. The second may be one of a later reading: the next
// turn may come long after the pause.
type remote struct {
	name  string
	fetch func(context.Context) ([]byte, error)
	pause time.Duration
	// spacing is the least time between two fetches where that is longer than fetchAge; else zero.
	spacing time.Duration

	mu sync.Mutex
	// counted is the last list that counted, when it was fetched last.
	counted dated
	// first is what was fetched last where that does not count yet, when it was first fetched: a
	// second fetch has to say the same.
	first dated
	// against is what was fetched since the last list that counted and could be read last. It speaks
	// against hosts also where it confirms nothing any more.
	against *list
	// fault is how the last reading failed; nil when it did not.
	fault  error
	failed time.Time
	// lastFetch is when the last fetch ended that was sent, whatever came of it.
	lastFetch time.Time
	// under is the reading that is under way; nil: none is.
	under *flight
}

// dated is a list and when it was fetched. No list: there was none.
type dated struct {
	says *list
	at   time.Time
}

// read returns the list as of now, or as of a moment ago where that is recent enough.
func (r *remote) read(ctx context.Context, recent bool) (*list, error) {
	r.mu.Lock()
	failing := r.fault != nil && time.Since(r.failed) < failureAge
	slow := r.under != nil && r.under.slow
	early := failing || slow || time.Since(r.lastFetch) < r.spacing
	switch {
	case recent && r.counted.says != nil && time.Since(r.counted.at) < fetchAge:
		defer r.mu.Unlock()
		return r.counted.says, nil
	case recent && early && r.mayStandIn():
		defer r.mu.Unlock()
		return r.standIn(), nil
	case recent && failing:
		defer r.mu.Unlock()
		return nil, r.fault
	}
	if r.under == nil {
		r.begin(ctx)
	}
	f := r.under
	f.waiting++
	waiting, cancel := ctx, context.CancelFunc(func() {})
	if recent && r.mayStandIn() {
		waiting, cancel = context.WithTimeout(ctx, patience)
	}
	r.mu.Unlock()
	defer cancel()
	says, err := f.wait(waiting, "fetch host list "+r.name)
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() == nil && waiting.Err() != nil {
		f.slow = true // it goes on: this one is not said to have left
	} else {
		r.leave(f)
	}
	if err == nil || !recent || ctx.Err() != nil {
		return says, err
	}
	if r.mayStandIn() {
		return r.standIn(), nil
	}
	return nil, err
}

// mayStandIn reports whether the list that counted last may answer a question about one host where
// nothing newer can be had. The caller has the lock.
func (r *remote) mayStandIn() bool {
	return r.counted.says != nil && time.Since(r.counted.at) < standsFor*r.spacing
}

// standIn returns the list that counted last, as one that may be out of date. The caller has the
// lock.
func (r *remote) standIn() *list {
	l := *r.counted.says
	l.newer = r.against
	if time.Since(r.counted.at) >= r.spacing {
		l.asOf = r.counted.at
	}
	return &l
}

// begin begins a reading. The caller has the lock.
func (r *remote) begin(ctx context.Context) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &flight{cancel: cancel, done: make(chan struct{})}
	r.under = f
	counted, first := r.counted.says, r.first
	go func() {
		defer cancel()
		got, err := r.look(own, f, counted, first)
		r.mu.Lock()
		defer r.mu.Unlock()
		f.says, f.fault = got.says, err
		close(f.done)
		if r.under != f { // nobody waits for it any more
			return
		}
		r.under, r.fault = nil, err
		if err == nil {
			r.counted, r.first, r.against = got, dated{}, nil
		} else {
			r.failed = time.Now()
		}
	}()
}

// look fetches the list until what it says counts.
func (r *remote) look(ctx context.Context, f *flight, counted *list, first dated) (dated, error) {
	for i := range fetches {
		if i > 0 {
			select {
			case <-time.After(r.pause):
			case <-ctx.Done():
				return dated{}, fleet.ContextError(ctx)
			}
		}
		begin := time.Now()
		data, err := r.once(ctx)
		if first.says != nil && provider.WasQueued(err) && ctx.Err() == nil {
			// Not wrapped: nobody is in front of this one, it is too early.
			err = fleet.Errorf(fleet.KindTemporary, "host list %s says something new, which counts when it was fetched again and says the same: %s", r.name, err.Error())
		}
		if err != nil {
			return dated{}, err
		}
		says, err := newList(r.name, data, counted, first.says)
		second := dated{says: says, at: time.Now()}
		switch {
		case err != nil:
			r.keep(f, dated{})
			return dated{}, err
		case says.same(counted):
			return second, nil
		case !says.same(first.says): // it is a first one itself
			first = second
			r.keep(f, first)
		case begin.Sub(first.at) >= r.pause:
			return second, nil
		}
	}
	return dated{}, fleet.Errorf(fleet.KindTemporary, "host list %s says something else each time that it is fetched", r.name)
}

// keep keeps what a reading has fetched, and does not count yet, for the readings after it. No
// list: it cannot be read, which takes nothing back that speaks against a host.
func (r *remote) keep(f *flight, first dated) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.under == f { // else a newer reading may know better
		r.first = first
		if first.says != nil {
			r.against = first.says
		}
	}
}

// once fetches the list once.
func (r *remote) once(ctx context.Context) ([]byte, error) {
	limited, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	data, err := r.fetch(limited)
	if !provider.WasQueued(err) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.lastFetch = time.Now()
	}
	return data, err
}

// leave has one less wait for a reading. The last one to leave ends it. The caller has the lock.
func (r *remote) leave(f *flight) {
	if f.waiting--; f.waiting > 0 {
		return
	}
	f.cancel()
	if r.under == f {
		r.under = nil
	}
}
