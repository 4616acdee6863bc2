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

// pass is the state of one call of Pass.
type pass struct {
	*session
	want *wanted
	// todo are the objects that are not as wanted and may be tried now.
	todo []*item
	// failing are the kinds of which at least one object could not be made as wanted.
	failing map[schema.GroupKind]bool

	// results guards what workers write: report, failures, foreign, failing.
	results sync.Mutex
	report  reconciler.Report
}

// item is one wanted object and what is known of the live one.
type item struct {
	*object.Object
	kind   api.Kind
	mirror *mirror.Mirror
	live   *metav1.PartialObjectMetadata // nil: none is known
	// version of the live object in the mirror. A failure holds until there is another version.
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
	p.compare(items)
	if err := p.lookUp(ctx); err != nil {
		return err
	}
	if err := p.record(ctx); err != nil {
		return err
	}
	for stage := range object.Stages {
		due := slices.DeleteFunc(slices.Clone(p.todo), func(i *item) bool { return i.Stage() != stage })
		if err := each(ctx, due, p.ensure); err != nil {
			return err
		}
	}
	if err := p.prune(ctx); err != nil {
		return err
	}
	return p.writeInventory(ctx)
}

// each calls work with every element, a few at a time. After an error it begins no more, and waits
// for those that it has begun.
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

// openInventory reads the inventory if what is known of it may be old.
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

// writeInventory stores the inventory if it has changed.
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

// locate finds the kind and the mirror of each object, and waits until the mirrors are in step. It
// asks again for a kind that the server does not have when one of its objects is due.
func (p *pass) locate(ctx context.Context) ([]*item, error) {
	fresh := p.kinds == nil
	if fresh {
		if err := p.refreshKinds(ctx); err != nil {
			return nil, err
		}
	}
	entries := p.ledger.entries()
	p.failures.keepOnly(func(key object.Key) bool {
		_, entered := entries[key]
		return entered || p.want.byKey[key] != nil
	})
	items := make([]*item, 0, len(p.want.objects))
	for _, o := range p.want.objects {
		kind, err := p.kinds.Of(o)
		if errors.Is(err, api.ErrNoKind) && !fresh && p.failures.due(o.Key, o.Hash(), "") {
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

// wake signals the next pass for when there may be something to do that no watch will tell: an
// object to be tried again.
func (p *pass) wake(err error) {
	d, any := p.failures.next()
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

// missing records that the kind of an object cannot be used.
func (p *pass) missing(ctx context.Context, o *object.Object, err error) {
	if p.failures.due(o.Key, o.Hash(), "") {
		p.fail(ctx, &item{Object: o}, err)
		return
	}
	p.stillFailing(o, p.failures[o.Key].reason)
}

// inStep waits for the mirror of an item's kind, and reports whether it is in step.
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
	if mirror.Gone(err) { // the server had the kind before: the next pass asks again
		p.kinds = nil
		delete(p.mirrors, i.kind.Resource)
		p.fail(ctx, i, err)
	}
	return false
}

// compare fills todo with the objects that are not as their mirror should have them. It makes no
// request.
func (p *pass) compare(items []*item) {
	for _, i := range items {
		i.live = i.mirror.Get(nameOf(i.Key))
		if i.live != nil {
			i.version = i.live.ResourceVersion
			p.adopt(i.Key, i.live)
			if p.upToDate(i.Object, i.live) {
				delete(p.failures, i.Key)
				continue
			}
			if i.LastApplied(i.live) && p.repairs.tooOften(i.Key) {
				p.stillFailing(i.Object, "others change it again and again; it is repaired ever less often")
				continue
			}
		}
		if p.failures.due(i.Key, i.Hash(), i.version) {
			p.todo = append(p.todo, i)
			continue
		}
		p.stillFailing(i.Object, p.failures[i.Key].reason)
	}
}

// adopt reports whether we have created a live object, and records its UID if it bears the mark of
// its entry.
func (p *pass) adopt(key object.Key, live *metav1.PartialObjectMetadata) (ours bool) {
	entry := p.ledger.entry(key)
	ours = entry.Ours(string(live.UID), live.Annotations[object.Mark])
	if ours && entry.Mark != "" && entry.Mark == live.Annotations[object.Mark] {
		p.ledger.created(key, string(live.UID))
	}
	return ours
}

// lookUp asks the server for objects that their mirror does not have but that may exist: without
// our label, or created by others.
func (p *pass) lookUp(ctx context.Context) error {
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

// record stores in the inventory what is about to be created. Nothing is created before that.
func (p *pass) record(ctx context.Context) error {
	p.todo = slices.DeleteFunc(p.todo, func(i *item) bool {
		_, failed := p.failures[i.Key]
		return failed && !p.failures.due(i.Key, i.Hash(), i.version)
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

// isolate records an error as the failure of one object. It returns an error if the pass cannot go
// on: ctx has ended, or the server did not answer.
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

// fail records a failure of an object, and logs it if its reason is new.
func (p *pass) fail(ctx context.Context, i *item, err error) {
	p.results.Lock()
	defer p.results.Unlock()
	reason := err.Error()
	if p.failures.failed(i.Key, i.Hash(), i.version, reason) {
		p.a.log.WarnContext(ctx, "an object is not as wanted",
			slog.String("object", i.Key.String()), slog.String("source", i.Source), slog.Any("err", err))
	}
	p.stillFailing(i.Object, reason)
}

// stillFailing puts an object that failed, now or earlier, in the report.
func (p *pass) stillFailing(o *object.Object, reason string) {
	p.failing[schema.GroupKind{Group: o.Group, Kind: o.Kind}] = true
	p.report.Failures = append(p.report.Failures, reconciler.Failure{Object: o.Key.String() + " (" + o.Source + ")", Reason: reason})
}

// succeeded counts a change of an object and forgets its failures.
func (p *pass) succeeded(count *int, key object.Key) {
	p.results.Lock()
	defer p.results.Unlock()
	*count++
	delete(p.failures, key)
}
