package resources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/reconciler/resources/api"
	"github.com/ironherd/ironherd/internal/reconciler/resources/health"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/manifest"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
	"github.com/ironherd/ironherd/reconciler/node"
)

// Applier keeps the resources of one cluster. It implements reconciler.Applier,
// reconciler.Planner and reconciler.Sourcer.
type Applier struct {
	client  *api.Client
	options Options
	release release
	log     *slog.Logger
	changed chan struct{}

	// directory is what passes read, and aside the same one for everybody else, who would take late
	// readings from the passes otherwise.
	directory, aside *manifest.Directory

	// ask is nil if nobody need be asked.
	ask func(context.Context, node.Source) (reconciler.Consent, error)

	// onReady is nil if nobody has to know before a pass ends.
	onReady func(context.Context) error

	judge *health.Judge
	// summarized is what Publish has written last.
	summarized summarized

	mu        sync.Mutex
	overrides []reconciler.Override
	// standings and deleting are those of the last pass of this session that went to its end, and
	// summarySeen the version of the summary that it saw.
	standings   []standing
	deleting    []reconciler.Deletion
	summarySeen string
	session     *session
	attached    chan struct{} // closed when session changes
}

var (
	_ reconciler.Applier     = (*Applier)(nil)
	_ reconciler.Planner     = (*Applier)(nil)
	_ reconciler.Sourcer     = (*Applier)(nil)
	_ reconciler.Overridable = (*Applier)(nil)
	_ reconciler.Prober      = (*Applier)(nil)

	_ reconciler.Publisher = (*Applier)(nil)
	_ reconciler.Staged    = (*Applier)(nil)

	_ reconciler.Identifier = (*Applier)(nil)
)

// Close closes idle connections. Nothing else may be called afterwards.
func (a *Applier) Close() { a.client.Close() }

// Changed implements reconciler.Applier.
func (a *Applier) Changed() <-chan struct{} { return a.changed }

// Probe implements reconciler.Prober.
func (a *Applier) Probe(ctx context.Context) error { return a.client.Usable(a.client.Logging(ctx)) }

// Ready asks the API server once whether it is ready to serve others. It does not matter whether it
// knows us: when our certificate has expired, clients still have theirs.
func (a *Applier) Ready(ctx context.Context) error { return a.client.Ready(a.client.Logging(ctx)) }

// Cluster implements reconciler.Identifier.
func (a *Applier) Cluster(ctx context.Context) (string, error) {
	system, err := a.client.Get(a.client.Logging(ctx), api.Namespace, object.Key{Kind: "Namespace", Name: inventory.Namespace})
	if object.Forbidden(err) {
		err = fmt.Errorf("%w: %w", reconciler.ErrMayNotAsk, err)
	}
	if err == nil && system.UID == "" {
		err = errors.New("the namespace has no UID")
	}
	if err != nil {
		return "", fmt.Errorf("the API server at %s does not tell which cluster it is of: %w", a.Address(), err)
	}
	return string(system.UID), nil
}

// Check asks the API server what a leader asks it first: whether it is ready and knows us, and what
// is in the inventory.
func (a *Applier) Check(ctx context.Context) error {
	if err := a.Probe(ctx); err != nil {
		return err
	}
	if _, err := a.client.Get(a.client.Logging(ctx), api.ConfigMap, inventoryKey); err != nil && !object.NotFound(err) {
		return fmt.Errorf("the API server at %s does not let us read the inventory: %w", a.Address(), err)
	}
	return nil
}

// Faults returns what is wrong with the manifests. It asks nobody.
func (a *Applier) Faults(ctx context.Context) []reconciler.Failure {
	w := a.wantSettled(ctx)
	return append(w.faults, w.refusals()...)
}

// Address is where the API server listens: HOST:PORT.
func (a *Applier) Address() string { return a.client.Address() }

// OnReady implements reconciler.Staged.
func (a *Applier) OnReady(ready func(context.Context) error) { a.onReady = ready }

// SetOverrides implements reconciler.Overridable.
func (a *Applier) SetOverrides(overrides []reconciler.Override) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.overrides = overrides
}

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
	s.follow(ctx, &mirrors)
	return nil
}

func (a *Applier) attach(s *session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.session = s
	a.standings, a.deleting, a.summarySeen = nil, nil, ""
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
	// kept are objects of the release that are not selected: they are left as they are.
	kept   map[object.Key]bool
	faults []reconciler.Failure
	// whole tells that every source could be read. If not, an object that is missing here may still
	// be wanted. Unread counts the sources that could not. What is unsettled, because somebody may be
	// writing it, is one of them; faulty tells that there are others.
	whole     bool
	unread    int
	unsettled bool
	faulty    bool
	// unknown tells that nothing is known yet of what is in the manifests.
	unknown bool
	// dependencies says which of the objects are applied after others.
	dependencies dependencies
}

// want reads all sources, for a pass.
func (a *Applier) want(ctx context.Context) *wanted { return a.wantOf(a.directory.Read(ctx)) }

// wantOf returns what the release and the manifests want. If two sources have the same object, the
// first one counts, and the second one is a fault. The release comes first, so no manifest can
// change what it needs.
func (a *Applier) wantOf(read manifest.Reading) *wanted {
	w := &wanted{byKey: map[object.Key]*object.Object{}, kept: a.release.offered, unread: len(read.Faults), unsettled: read.Unsettled}
	w.faulty, w.unknown = w.unread > 0, read.Unknown
	if w.unsettled {
		w.unread = max(w.unread, 1)
	}
	w.whole = w.unread == 0
	for _, f := range read.Faults {
		w.faults = append(w.faults, reconciler.Failure{Object: f.Source, Reason: f.Err.Error()})
	}
	for _, o := range slices.Concat(a.release.objects, read.Objects) {
		first, twice := w.byKey[o.Key]
		switch {
		case twice:
			reason := "it is wanted twice; what counts is what comes first: " + first.Source
			w.faults = append(w.faults, reconciler.Failure{Object: o.Title(), Reason: reason})
		case inventory.IsPart(o.Key), o.Key == summaryKey:
			w.faults = append(w.faults, reconciler.Failure{Object: o.Title(), Reason: "it is our own inventory, or our summary"})
		default:
			w.byKey[o.Key] = o
			if err := a.judge.Check(o.HealthyWhen()); err != nil { // it is applied all the same
				w.faults = append(w.faults, reconciler.Failure{Object: o.Title(), Reason: err.Error()})
			}
		}
	}
	w.objects = slices.SortedFunc(maps.Values(w.byKey), func(a, b *object.Object) int { return compareKeys(a.Key, b.Key) })
	w.resolve()
	return w
}

// wantSettled reads all sources, for others than passes. It waits until what was written just now
// counts, or is named as a file that never does. A pass does not wait: it comes again.
func (a *Applier) wantSettled(ctx context.Context) *wanted {
	for begun := time.Now(); ; {
		w := a.wantOf(a.aside.Read(ctx))
		if !w.unsettled || time.Since(begun) >= manifest.Limit {
			return w
		}
		select {
		case <-time.After(a.options.Settled):
		case <-ctx.Done():
			return w
		}
	}
}

// of returns the objects of the release, or those of the manifests.
func (w *wanted) of(release bool) []*object.Object {
	return slices.DeleteFunc(slices.Clone(w.objects), func(o *object.Object) bool { return (o.Need != object.Nobody) != release })
}

// leave takes an object out of those that are compared. It is still wanted, and so not deleted.
func (w *wanted) leave(o *object.Object) {
	w.objects = slices.DeleteFunc(w.objects, func(other *object.Object) bool { return other == o })
}

// replace exchanges an object for another one of the same key.
func (w *wanted) replace(o *object.Object) {
	w.byKey[o.Key] = o
	w.objects[slices.IndexFunc(w.objects, func(other *object.Object) bool { return other.Key == o.Key })] = o
}
