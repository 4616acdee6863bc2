package resources

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/ironherd/ironherd/internal/reconciler"
	"github.com/ironherd/ironherd/internal/reconciler/resources/api"
	"github.com/ironherd/ironherd/internal/reconciler/resources/manifest"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// Applier keeps the resources of one cluster. It implements reconciler.Applier and
// reconciler.Planner.
type Applier struct {
	client  *api.Client
	options Options
	log     *slog.Logger
	changed chan struct{}

	reading   sync.Mutex // a pass and a plan may meet
	directory *manifest.Directory

	mu       sync.Mutex
	session  *session
	attached chan struct{} // closed when session changes
}

var (
	_ reconciler.Applier = (*Applier)(nil)
	_ reconciler.Planner = (*Applier)(nil)
)

// Close gives idle connections up. Nothing else may be called afterwards.
func (a *Applier) Close() { a.client.Close() }

// Changed implements reconciler.Applier.
func (a *Applier) Changed() <-chan struct{} { return a.changed }

// signal says that a pass may find something to do.
func (a *Applier) signal() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// Run implements reconciler.Applier. All that a pass remembers begins and ends with it: what
// another leader has done in between is learned anew.
func (a *Applier) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(a.client.Logging(ctx))
	s := newSession(a)
	a.attach(s)
	var mirrors sync.WaitGroup
	defer func() {
		a.attach(nil)
		s.end()
		cancel()
		mirrors.Wait()
	}()
	for {
		select {
		case m := <-s.start:
			mirrors.Go(func() { m.Run(ctx) })
		case <-ctx.Done():
			return nil
		}
	}
}

func (a *Applier) attach(s *session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.session = s
	close(a.attached)
	a.attached = make(chan struct{})
}

// current waits for the session of Run.
func (a *Applier) current(ctx context.Context) (*session, error) {
	for {
		a.mu.Lock()
		s, attached := a.session, a.attached
		a.mu.Unlock()
		if s != nil {
			return s, nil
		}
		select {
		case <-attached:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// wanted is everything that is wanted, in the order in which it is applied.
type wanted struct {
	objects []*object.Object
	byKey   map[object.Key]*object.Object
	faults  []reconciler.Failure
	// whole: every source could be read. Else what is missing may be wanted all the same.
	whole bool
}

// want reads all sources. An object that is wanted twice is wanted as its first source says; the
// second is a fault.
func (a *Applier) want() *wanted {
	a.reading.Lock()
	objects, faults := a.directory.Read()
	a.reading.Unlock()
	w := &wanted{byKey: map[object.Key]*object.Object{}, whole: len(faults) == 0}
	for _, f := range faults {
		w.faults = append(w.faults, reconciler.Failure{Object: f.Source, Reason: f.Err.Error()})
	}
	for _, o := range append(slices.Clone(a.options.BuiltIn), objects...) {
		first, twice := w.byKey[o.Key]
		switch {
		case twice:
			reason := "it is wanted twice; what counts is what comes first: " + first.Source
			w.faults = append(w.faults, reconciler.Failure{Object: o.Key.String() + " (" + o.Source + ")", Reason: reason})
		case o.Key == inventoryKey:
			w.faults = append(w.faults, reconciler.Failure{Object: o.Key.String() + " (" + o.Source + ")", Reason: "it is our own inventory"})
		default:
			w.byKey[o.Key] = o
		}
	}
	w.objects = slices.SortedFunc(maps.Values(w.byKey), func(a, b *object.Object) int { return compareKeys(a.Key, b.Key) })
	return w
}
