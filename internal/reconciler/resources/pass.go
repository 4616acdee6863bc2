package resources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ironherd/ironherd/internal/reconciler/resources/api"
	"github.com/ironherd/ironherd/internal/reconciler/resources/health"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/mirror"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// pass is the state of one call of Pass.
type pass struct {
	*session
	want *wanted
	// begun is when the pass began.
	begun time.Time
	// plan is set if the pass is to change nothing.
	plan *plan
	// todo are the objects that are not as wanted and may be tried now.
	todo []*item
	// failing are the kinds of which at least one object could not be made as wanted.
	failing map[failingKind]bool
	// overrides are those that hold.
	overrides []reconciler.Override
	// blocked tells that something failed that API servers of the release need.
	blocked bool

	// located are the wanted objects whose kind can be followed, and why says of those that are not
	// as wanted why not.
	located map[object.Key]*item
	why     map[object.Key]string
	looks
	budget
	// results guards what workers write: report, failures, turns, asked, absent, lost, checked,
	// foreign, unlabeled, failing, blocked, events, why, saying, health, unlooked, due.
	results sync.Mutex
	report  reconciler.Report
	events  []api.Event
	// due is how long it takes until something may be done that has to wait for its time.
	due soonest
	// saying has, of each object that is not as wanted, what there is to tell of it. Ownerless has
	// the names under which failures of no object are in the report.
	saying    map[object.Key]string
	ownerless map[string]bool
}

// failingKind tells the objects of the release from those of the manifests, so that a manifest's
// failure does not hold up what the release needs.
type failingKind struct {
	schema.GroupKind
	release bool
}

func kindOf(o *object.Object) failingKind {
	return failingKind{schema.GroupKind{Group: o.Group, Kind: o.Kind}, o.Need != object.Nobody}
}

// item is one wanted object and what is known of the live one.
type item struct {
	*object.Object
	kind   api.Kind
	mirror *mirror.Mirror                // nil, in a plan alone: the server does not have the kind yet
	live   *metav1.PartialObjectMetadata // nil: none is known
	// lost tells that we had created it, and that it is gone: somebody has deleted it. So does lost of
	// the session, until it is there again.
	lost bool
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
	p := newPass(s, a.want(ctx))
	if err = p.run(ctx); err == nil {
		p.lookAtAll(ctx)
		p.remember(ctx)
	}
	p.report.Deleting, p.report.Unrecorded = s.deleting, s.unrecorded
	p.reportFights(ctx)
	shorten(p.report.Failures)
	p.tellFaults(ctx)
	p.rememberSaid(err == nil && !p.brokenOff())
	p.sendEvents(ctx)
	p.report.Requests = int(requests.Load())
	p.wake(err)
	if err == nil {
		err = inOneLine(p.report.Failures)
	}
	return p.report, err
}

func newPass(s *session, want *wanted) *pass {
	p := &pass{
		session: s, want: want, begun: time.Now(), failing: map[failingKind]bool{}, located: map[object.Key]*item{}, why: map[object.Key]string{},
		saying: map[object.Key]string{}, ownerless: map[string]bool{}, budget: budget{left: map[object.Key]bool{}},
		looks: looks{unlooked: map[object.Key]health.Verdict{}},
	}
	s.a.mu.Lock()
	p.overrides = s.a.overrides
	s.a.mu.Unlock()
	if !slices.Equal(p.overrides, s.overrides) {
		s.overrides = p.overrides
		s.forgetTurns()
		clear(s.failures) // what failed is tried again at once, and a paused object's retry wakes nobody
	}
	maps.DeleteFunc(s.absent, func(key object.Key, _ time.Time) bool { return want.byKey[key] != nil || want.faulty })
	maps.DeleteFunc(s.checked, func(key object.Key, _ checkedVersion) bool { return want.byKey[key] == nil })
	s.forgetLooks()
	p.report.Objects, p.report.Failures = len(want.objects), slices.Clone(want.faults)
	return p
}

// run returns an error when the pass cannot go on: the API server does not answer, or ctx has
// ended. What the release itself needs comes first, so that nothing in a manifest can hold it up.
func (p *pass) run(ctx context.Context) error {
	if err := p.openInventory(ctx); err != nil {
		return err
	}
	if err := p.chooseDefault(ctx); err != nil {
		return err
	}
	for _, release := range []bool{true, false} {
		if err := p.keep(ctx, release); err != nil {
			return err
		}
		if err := p.prune(ctx, release); err != nil {
			return err
		}
		if !release {
			continue
		}
		p.report.Ready = !p.blocked
		if p.report.Ready && p.a.onReady != nil && p.plan == nil {
			if err := p.a.onReady(ctx); err != nil {
				return err
			}
		}
	}
	p.endBudget()
	p.letGo(ctx)
	err := p.writeInventory(ctx)
	if errors.Is(err, errUnknown) {
		return nil // that has failed already, and it is read again
	}
	if notStored(err) { // what is deleted, or has a UID by now, shows again
		p.report.Failures = append(p.report.Failures, reconciler.Failure{Object: inventoryKey.String(), Reason: err.Error()})
		return nil
	}
	return err
}

// keep makes the objects of the release, or those of the manifests, as wanted, stage by stage.
func (p *pass) keep(ctx context.Context, release bool) error {
	items, err := p.locate(ctx, p.refuse(ctx, p.want.of(release)))
	if err != nil {
		return err
	}
	for _, i := range items {
		p.located[i.Key] = i
	}
	if !release {
		p.startBudget()
	}
	if err := p.takeOver(ctx, items); err != nil {
		return err
	}
	p.compare(ctx, items)
	found := p.todo
	for _, level := range p.want.levels(found) {
		p.todo = p.admissible(ctx, found, level)
		if err := p.keepLevel(ctx); err != nil {
			return err
		}
	}
	return nil
}

// keepLevel makes what is to be done as wanted, stage by stage.
func (p *pass) keepLevel(ctx context.Context) error {
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
	return nil
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
	seen := inventory.Seen(func(name string) string {
		if part := m.Get(mirror.Name{Namespace: inventory.Namespace, Name: name}); part != nil {
			return part.ResourceVersion
		}
		return ""
	})
	if err := p.ledger.refresh(ctx, seen); err != nil {
		return err
	}
	if p.ledger.faults != nil {
		p.report.Failures = append(p.report.Failures, reconciler.Failure{Object: inventoryKey.String(), Reason: p.ledger.faults.Error()})
	}
	return nil
}

// writeInventory stores the inventory if it has changed.
func (p *pass) writeInventory(ctx context.Context) error {
	if p.plan != nil {
		return nil
	}
	stored, err := p.ledger.write(ctx)
	if err != nil {
		return p.unanswered(ctx, err)
	}
	for _, part := range stored {
		p.mirrors[api.ConfigMap.Resource].Put(part)
	}
	return nil
}

// locate finds the kind and the mirror of each object, and waits until the mirrors are in step. It
// asks again for a kind that the server does not have when one of its objects is due.
func (p *pass) locate(ctx context.Context, objects []*object.Object) ([]*item, error) {
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
	items := make([]*item, 0, len(objects))
	for _, o := range objects {
		kind, err := p.kinds.Of(o)
		if errors.Is(err, api.ErrNoKind) && !fresh && p.failures.due(o.Key, o.Hash(), "") {
			fresh = true
			if err := p.refreshKinds(ctx); err != nil {
				return nil, err
			}
			kind, err = p.kinds.Of(o)
		}
		if p.plan != nil && errors.Is(err, api.ErrNoKind) && p.want.defines(o) {
			items = append(items, &item{Object: o})
			continue
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
	return slices.DeleteFunc(items, func(i *item) bool { return i.mirror != nil && !p.inStep(ctx, i) }), context.Cause(ctx)
}

// missing records that the kind of an object cannot be used.
func (p *pass) missing(ctx context.Context, o *object.Object, err error) {
	if p.failures.due(o.Key, o.Hash(), "") {
		p.fail(ctx, &item{Object: o}, err)
		return
	}
	p.stillFailing(ctx, o, nil, p.failures[o.Key].reason)
}

// inStep waits for the mirror of an item's kind, and reports whether it is in step.
func (p *pass) inStep(ctx context.Context, i *item) bool {
	err := i.mirror.Await(ctx)
	if err == nil {
		return true
	}
	kind := kindOf(i.Object)
	if every := "every " + kind.String(); !p.ownerless[every] {
		p.ownerless[every] = true
		p.report.Failures = append(p.report.Failures, reconciler.Failure{
			Object: every, Reason: "they cannot be followed: " + err.Error(), Required: i.Need == object.Required,
		})
	}
	p.failing[kind] = true
	p.blocked = p.blocked || i.Need == object.Required
	if mirror.Gone(err) { // the server had the kind before: the next pass asks again
		p.kinds = nil
		p.fail(ctx, i, err)
	}
	return false
}

// compare fills todo with the objects that are not as their mirror should have them. It makes no
// request.
func (p *pass) compare(ctx context.Context, items []*item) {
	p.todo = nil
	for _, i := range items {
		i.live = p.now(i)
		if i.live != nil {
			i.version = i.live.ResourceVersion
			p.adopt(i.Object, i.live)
			if p.asWanted(i, i.live) {
				delete(p.failures, i.Key)
				continue
			}
			if p.leaveAlone(ctx, i) {
				continue
			}
			if p.drifted(i) && p.repairs.tooOften(i.Key) {
				p.stillFailing(ctx, i.Object, i.live, changedAgain)
				continue
			}
		}
		if i.live == nil && !p.replacing(i) { // what was begun is finished
			if p.leaveAlone(ctx, i) {
				continue
			}
			if p.repairs.tooOften(i.Key) {
				p.stillFailing(ctx, i.Object, nil, deletedAgain)
				continue
			}
		}
		if !p.failures.due(i.Key, i.Hash(), i.version) {
			p.stillFailing(ctx, i.Object, i.live, p.failures[i.Key].reason)
		} else if !p.waitsForOthers(i.Object, i.live != nil) {
			p.todo = append(p.todo, i)
		}
	}
}

// lookUp asks the server for objects that their mirror does not have but that may exist: without
// our label, or created by others.
func (p *pass) lookUp(ctx context.Context) error {
	var unsure []*item
	for _, i := range p.todo {
		if i.live == nil && i.mirror != nil && !p.asked[i.Key] && (p.foreign[i.Key] || p.ledger.entry(i.Key).UID != "") {
			unsure = append(unsure, i)
		}
	}
	err := each(ctx, unsure, func(ctx context.Context, i *item) error {
		if p.leave(i) {
			return nil
		}
		live, err := p.a.client.Get(ctx, i.kind, i.Key)
		switch {
		case err == nil:
			i.live = live
			p.saw(i, live) // this pass may leave it to the next one
		case object.NotFound(err):
			p.results.Lock()
			if i.lost = p.ledger.entry(i.Key).UID != "" && !p.replacing(i); i.lost {
				p.lost[i.Key] = true
			}
			delete(p.foreign, i.Key)
			p.results.Unlock()
			if p.replacing(i) {
				p.askedNow(i.Object)
			}
		default:
			return p.isolate(ctx, i, err)
		}
		return nil
	})
	// One that is there after all, without our label, is not half of a replacement: a pause holds.
	p.todo = slices.DeleteFunc(p.todo, func(i *item) bool {
		if p.left[i.Key] || i.live == nil || !p.replacing(i) || p.going(i) {
			return p.left[i.Key]
		}
		if !p.landing(i) {
			p.ledger.notReplaced(i.Key)
		}
		return p.leaveAlone(ctx, i)
	})
	return err
}

// record stores in the inventory what is about to be created. Nothing is created before that. What
// cannot be recorded fails, and stops nothing else.
func (p *pass) record(ctx context.Context) error {
	defer p.uncounted(time.Now())
	p.todo = slices.DeleteFunc(p.todo, func(i *item) bool {
		_, failed := p.failures[i.Key]
		_, had := p.turn(i.Object) // in this pass
		return had || failed && !p.failures.due(i.Key, i.Hash(), i.version)
	})
	var withdraw []func()
	for _, i := range p.todo {
		if i.live == nil {
			withdraw = append(withdraw, p.ledger.intend(i.Key, i.Need, i.lost))
		}
	}
	if len(withdraw) == 0 {
		return nil
	}
	err := p.writeInventory(ctx)
	if err == nil || !notStored(err) {
		return err
	}
	for _, each := range withdraw {
		each()
	}
	p.todo = slices.DeleteFunc(p.todo, func(i *item) bool {
		if i.live == nil {
			p.fail(ctx, i, fmt.Errorf("it is not created, because that cannot be recorded: %w", err))
		}
		return i.live == nil
	})
	return nil
}

// isolate records an error as the failure of one object. It returns an error if the pass cannot go
// on: ctx has ended, or the server does not answer.
func (p *pass) isolate(ctx context.Context, i *item, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err = p.unanswered(ctx, err); !answered(err) {
		return fmt.Errorf("%s: %w", i.Key, err)
	}
	p.fail(ctx, i, err)
	return nil
}

// unanswered makes errSilent of the lack of an answer if the server answers another question. Then
// it is because of this request: an admission webhook hangs, or a proxy cuts off what it does not
// like, say.
func (p *pass) unanswered(ctx context.Context, err error) error {
	if !answered(err) && ctx.Err() == nil && p.a.client.Alive(ctx) {
		return fmt.Errorf("%w: %w", errSilent, err)
	}
	return err
}

// stillFailing puts an object that failed, now or earlier, in the report. If the reason is news, it
// logs it, and tells of it in an event. Live is nil if there is no such object.
func (p *pass) stillFailing(ctx context.Context, o *object.Object, live *metav1.PartialObjectMetadata, reason string) {
	if p.news(o, live, reason, reason) {
		p.a.log.WarnContext(ctx, "an object is not as wanted",
			slog.String("object", o.Key.String()), slog.String("source", o.Source), slog.String("err", reason))
	}
	p.reportFailure(o, reason)
}

// reportFailure puts an object that is not as wanted in the report. Nothing of its kind is deleted.
func (p *pass) reportFailure(o *object.Object, reason string) {
	p.failing[kindOf(o)] = true
	p.reportUndone(o, reason)
}

// reportUndone is reportFailure of what keeps nothing of its kind from being deleted.
func (p *pass) reportUndone(o *object.Object, reason string) {
	required := o.Need == object.Required
	p.why[o.Key] = reason
	p.blocked = p.blocked || required
	p.report.Failures = append(p.report.Failures, reconciler.Failure{Object: o.Title(), Reason: reason, Required: required})
}
