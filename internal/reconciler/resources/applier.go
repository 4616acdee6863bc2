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

// Close closes idle connections. Nothing else may be called afterwards.
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

// Run implements reconciler.Applier. What passes remember lasts as long as one Run, so that a new
// leadership learns anew what another leader has done.
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

// current returns the session of Run, and waits for one if Run is not running.
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

// wanted has all wanted objects, in the order in which they are applied.
type wanted struct {
	objects []*object.Object
	byKey   map[object.Key]*object.Object
	faults  []reconciler.Failure
	// whole tells that every source could be read. If not, an object that is missing here may still be
	// wanted.
	whole bool
}

// want reads all sources. If two sources have the same object, the first one counts, and the second
// one is a fault.
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
