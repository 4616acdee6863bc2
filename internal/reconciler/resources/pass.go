package resources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ironherd/ironherd/internal/reconciler"
	"github.com/ironherd/ironherd/internal/reconciler/resources/api"
	"github.com/ironherd/ironherd/internal/reconciler/resources/mirror"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// parallel is how many objects are worked on at a time.
const parallel = 8

// pass is one pass.
type pass struct {
	*session
	want *wanted
	// todo are the objects that are not as wanted, and may be tried now.
	todo []*item
	// failing are the kinds of which something could not be made as wanted.
	failing map[schema.GroupKind]bool

	results sync.Mutex // guards what workers write: report, tries, foreign, failing
	report  reconciler.Report
}

// item is one wanted object, and what is known of the live one.
type item struct {
	*object.Object
	kind   api.Kind
	mirror *mirror.Mirror
	live   *metav1.PartialObjectMetadata // nil: none is known
	// version of the live object in the mirror; a failure holds until there is another.
	version string
}

// Pass implements reconciler.Applier.
func (a *Applier) Pass(ctx context.Context) (reconciler.Report, error) {
	var requests atomic.Int64
	ctx = api.Counting(a.client.Logging(ctx), &requests)
	s, err := a.current(ctx)
	if err != nil {
		return reconciler.Report{}, err
	}
	p := &pass{session: s, want: a.want(), failing: map[schema.GroupKind]bool{}}
	p.report.Objects, p.report.Failures = len(p.want.objects), slices.Clone(p.want.faults)
	err = p.run(ctx)
	p.report.Requests = int(requests.Load())
	p.wake(err)
	if err == nil && len(p.report.Failures) > 0 {
		first := p.report.Failures[0]
		err = fmt.Errorf("%d of what is wanted could not be done; first: %s: %s", len(p.report.Failures), first.Object, first.Reason)
	}
	return p.report, err
}

// run returns an error when the pass cannot go on: the API server does not answer, or ctx has
// ended.
func (p *pass) run(ctx context.Context) error {
	if err := p.openInventory(ctx); err != nil {
		return err
	}
	items, err := p.locate(ctx)
	if err != nil {
		return err
	}
	p.survey(items)
	if err := p.look(ctx); err != nil {
		return err
	}
	if err := p.record(ctx); err != nil {
		return err
	}
	for stage := range object.Stages {
		due := slices.DeleteFunc(slices.Clone(p.todo), func(i *item) bool { return i.Stage() != stage })
		if err := each(ctx, due, p.bring); err != nil {
			return err
		}
	}
	if err := p.prune(ctx); err != nil {
		return err
	}
	return p.writeInventory(ctx)
}

// each works on a few at a time. After an error no more is begun; what has begun goes on to its
// end.
func each[T any](ctx context.Context, all []T, work func(context.Context, T) error) error {
	var (
		wg      sync.WaitGroup
		next    atomic.Int64
		stopped atomic.Bool
		once    sync.Once
		first   error
	)
	for range min(parallel, len(all)) {
		wg.Go(func() {
			for n := next.Add(1) - 1; int(n) < len(all) && ctx.Err() == nil && !stopped.Load(); n = next.Add(1) - 1 {
				if err := work(ctx, all[n]); err != nil {
					once.Do(func() { first = err })
					stopped.Store(true)
				}
			}
		})
	}
	wg.Wait()
	if first == nil && ctx.Err() != nil {
		first = context.Cause(ctx)
	}
	return first
}

// openInventory makes sure that the inventory is known.
func (p *pass) openInventory(ctx context.Context) error {
	m, err := p.mirror(ctx, api.ConfigMap)
	if err != nil {
		return err
	}
	if err := m.Await(ctx); err != nil {
		return fmt.Errorf("follow the inventory: %w", err)
	}
	if err := p.ledger.refresh(ctx, m.Get(nameOf(inventoryKey))); err != nil {
		return err
	}
	if p.ledger.faults != nil {
		p.report.Failures = append(p.report.Failures, reconciler.Failure{Object: inventoryKey.String(), Reason: p.ledger.faults.Error()})
	}
	return nil
}

// writeInventory stores what has changed in it.
func (p *pass) writeInventory(ctx context.Context) error {
	stored, err := p.ledger.write(ctx)
	if err != nil {
		return err
	}
	if stored != nil {
		p.mirrors[api.ConfigMap.Resource].Put(stored)
	}
	return nil
}

// locate finds out how each object is reached, and waits until all that is followed is in step.
// Kinds that are not there are asked for again when one of their objects is due.
func (p *pass) locate(ctx context.Context) ([]*item, error) {
	fresh := p.kinds == nil
	if fresh {
		if err := p.refreshKinds(ctx); err != nil {
			return nil, err
		}
	}
	entries := p.ledger.entries()
	p.tries.keepOnly(func(key object.Key) bool {
		_, entered := entries[key]
		return entered || p.want.byKey[key] != nil
	})
	items := make([]*item, 0, len(p.want.objects))
	for _, o := range p.want.objects {
		kind, err := p.kinds.Of(o)
		if errors.Is(err, api.ErrNoKind) && !fresh && p.tries.due(o.Key, o.Hash(), "") {
			fresh = true
			if err := p.refreshKinds(ctx); err != nil {
				return nil, err
			}
			kind, err = p.kinds.Of(o)
		}
		if err != nil {
			p.missing(ctx, o, err)
			continue
		}
		m, err := p.mirror(ctx, kind)
		if err != nil {
			return nil, err
		}
		items = append(items, &item{Object: o, kind: kind, mirror: m})
	}
	return slices.DeleteFunc(items, func(i *item) bool { return !p.inStep(ctx, i) }), context.Cause(ctx)
}

// wake has the next pass made as soon as there may be something to do for it that no watch tells.
func (p *pass) wake(err error) {
	d, any := p.tries.next()
	if again, waiting := p.repairs.next(); waiting && (!any || again < d) {
		d, any = again, true
	}
	p.aborted++
	if err == nil {
		p.aborted = 0
	} else if again := min(minPause<<min(p.aborted, 20), maxAbortedPause); !any || again < d {
		d, any = again, true
	}
	if any {
		p.wakeIn(d)
	}
}

// missing takes an object whose kind cannot be used.
func (p *pass) missing(ctx context.Context, o *object.Object, err error) {
	if p.tries.due(o.Key, o.Hash(), "") {
		p.fail(ctx, &item{Object: o}, err)
		return
	}
	p.stillFailing(o, p.tries[o.Key].reason)
}

// inStep reports whether the objects of an item's kind are known.
func (p *pass) inStep(ctx context.Context, i *item) bool {
	err := i.mirror.Await(ctx)
	if err == nil {
		return true
	}
	gk := schema.GroupKind{Group: i.Group, Kind: i.Kind}
	if !p.failing[gk] {
		p.report.Failures = append(p.report.Failures, reconciler.Failure{
			Object: "every " + gk.String(), Reason: "they cannot be followed: " + err.Error(),
		})
	}
	p.failing[gk] = true
	if mirror.Gone(err) { // a kind that was there: it is asked for anew
		p.kinds = nil
		delete(p.mirrors, i.kind.Resource)
		p.fail(ctx, i, err)
	}
	return false
}

// survey finds what is not as wanted. No request is made.
func (p *pass) survey(items []*item) {
	for _, i := range items {
		i.live = i.mirror.Get(nameOf(i.Key))
		if i.live != nil {
			i.version = i.live.ResourceVersion
			p.adopt(i.Key, i.live)
			if p.holds(i.Object, i.live) {
				delete(p.tries, i.Key)
				continue
			}
			if i.WasHeld(i.live) && p.repairs.tooOften(i.Key) {
				p.stillFailing(i.Object, "others change it again and again; it is repaired ever less often")
				continue
			}
		}
		if p.tries.due(i.Key, i.Hash(), i.version) {
			p.todo = append(p.todo, i)
			continue
		}
		p.stillFailing(i.Object, p.tries[i.Key].reason)
	}
}

// adopt notes the UID of an object that bears the mark of its entry.
func (p *pass) adopt(key object.Key, live *metav1.PartialObjectMetadata) (ours bool) {
	entry := p.ledger.entry(key)
	ours = entry.Ours(string(live.UID), live.Annotations[object.Mark])
	if ours && entry.Mark != "" && entry.Mark == live.Annotations[object.Mark] {
		p.ledger.saw(key, string(live.UID))
	}
	return ours
}

// look asks for objects that are not in their mirror but may be there: without our label, or made
// by others.
func (p *pass) look(ctx context.Context) error {
	var unsure []*item
	for _, i := range p.todo {
		if i.live == nil && (p.foreign[i.Key] || p.ledger.entry(i.Key).UID != "") {
			unsure = append(unsure, i)
		}
	}
	return each(ctx, unsure, func(ctx context.Context, i *item) error {
		live, err := p.a.client.Get(ctx, i.kind, i.Key)
		switch {
		case err == nil:
			i.live = live
		case notFound(err):
			p.results.Lock()
			delete(p.foreign, i.Key)
			p.results.Unlock()
		default:
			return p.isolate(ctx, i, err)
		}
		return nil
	})
}

// record writes down what is about to be created, before it is.
func (p *pass) record(ctx context.Context) error {
	p.todo = slices.DeleteFunc(p.todo, func(i *item) bool {
		_, failed := p.tries[i.Key]
		return failed && !p.tries.due(i.Key, i.Hash(), i.version)
	})
	any := false
	for _, i := range p.todo {
		if i.live == nil {
			p.ledger.intend(i.Key)
			any = true
		}
	}
	if !any {
		return nil
	}
	return p.writeInventory(ctx)
}

// isolate makes a failure of what one object met; it returns an error if it is not the object's.
func (p *pass) isolate(ctx context.Context, i *item, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !answered(err) {
		return fmt.Errorf("%s: %w", i.Key, err)
	}
	p.fail(ctx, i, err)
	return nil
}

// fail takes what an object failed with.
func (p *pass) fail(ctx context.Context, i *item, err error) {
	p.results.Lock()
	defer p.results.Unlock()
	reason := err.Error()
	if p.tries.failed(i.Key, i.Hash(), i.version, reason) {
		p.a.log.WarnContext(ctx, "an object is not as wanted",
			slog.String("object", i.Key.String()), slog.String("source", i.Source), slog.Any("err", err))
	}
	p.stillFailing(i.Object, reason)
}

// stillFailing reports an object that failed, now or earlier.
func (p *pass) stillFailing(o *object.Object, reason string) {
	p.failing[schema.GroupKind{Group: o.Group, Kind: o.Kind}] = true
	p.report.Failures = append(p.report.Failures, reconciler.Failure{Object: o.Key.String() + " (" + o.Source + ")", Reason: reason})
}

// did counts what was done to an object.
func (p *pass) did(count *int, key object.Key) {
	p.results.Lock()
	defer p.results.Unlock()
	*count++
	delete(p.tries, key)
}
