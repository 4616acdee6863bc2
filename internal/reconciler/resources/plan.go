package resources

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ironherd/ironherd/internal/reconciler/resources/api"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// plan takes the place of the server in a pass that is to change nothing. The pass decides as any
// other one; what it would write, the server is asked about by a dry run, and what comes of it is
// kept here. So a plan cannot show what no pass does.
type plan struct {
	p *pass

	mu      sync.Mutex
	changes map[object.Key]plannedChange
	// after has the objects as they would be.
	after map[object.Key]*metav1.PartialObjectMetadata
	// approve is the digest of Diff.Approve.
	approve string
}

// plannedChange is a change and where it is in the order of a pass.
type plannedChange struct {
	reconciler.Change
	object.Key
	release bool
	// level is that of the dependencies of what is wanted.
	level int
	// before is what would be deleted; nil of any other change.
	before *unstructured.Unstructured
}

// Plan implements reconciler.Planner. It is a pass with watches of its own, as the first one of a
// process is. It does not foresee whether the inventory can be stored.
func (a *Applier) Plan(ctx context.Context) (reconciler.Diff, error) {
	ctx, cancel := context.WithCancel(a.client.Logging(ctx))
	want := a.wantSettled(ctx)
	s := newSession(a.quiet())
	var mirrors, following sync.WaitGroup
	following.Go(func() { s.follow(ctx, &mirrors) })
	defer func() {
		s.end()
		cancel()
		following.Wait()
		mirrors.Wait()
	}()
	p := newPass(s, want)
	p.plan = &plan{p: p, changes: map[object.Key]plannedChange{}, after: map[object.Key]*metav1.PartialObjectMetadata{}}
	if err := p.run(ctx); err != nil {
		return reconciler.Diff{}, err
	}
	return p.plan.diff(p.deletions(ctx)), nil
}

// quiet returns an applier for a plan: what its pass logs, or signals, would not be true.
func (a *Applier) quiet() *Applier {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &Applier{
		client: a.client, options: a.options, release: a.release, log: slog.New(slog.DiscardHandler), changed: make(chan struct{}, 1),
		ask: a.ask, judge: a.judge, overrides: a.overrides,
	}
}

func (l *plan) diff(deleting []reconciler.Deletion) reconciler.Diff {
	d := reconciler.Diff{Objects: l.p.report.Objects, Failures: l.p.report.Failures, Deleting: deleting, Approve: l.approve}
	all := make([]plannedChange, 0, len(l.changes))
	for _, c := range l.changes {
		all = append(all, c)
	}
	slices.SortFunc(all, comparePlanned)
	for _, c := range all {
		d.Changes = append(d.Changes, c.Change)
	}
	slices.SortStableFunc(d.Failures, func(a, b reconciler.Failure) int { return strings.Compare(a.Object, b.Object) })
	return d
}

// comparePlanned is the order of a pass: what the release is about comes first, and what is deleted
// last, from the last stage to the first.
func comparePlanned(a, b plannedChange) int {
	if a.release != b.release {
		return map[bool]int{true: -1, false: 1}[a.release]
	}
	prunes := map[bool]int{true: 1}
	inOrder := compareKeys(a.Key, b.Key)
	if a.Action == reconciler.Prune {
		inOrder = -inOrder
	}
	return cmp.Or(cmp.Compare(prunes[a.Action == reconciler.Prune], prunes[b.Action == reconciler.Prune]), cmp.Compare(a.level, b.level), inOrder)
}

// add keeps a change, in place of an earlier one of the same object.
func (l *plan) add(c plannedChange) {
	c.Object = c.Key.String()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changes[c.Key] = c
}

// change adds a change of an object that is wanted.
func (l *plan) change(o *object.Object, c reconciler.Change) {
	l.add(plannedChange{Change: c, Key: o.Key, release: o.Need != object.Nobody, level: l.p.want.dependencies.level[o.Key]})
}

// apply asks the server what it would make of an apply.
func (l *plan) apply(ctx context.Context, i *item, o *object.Object, a api.Apply) (*metav1.PartialObjectMetadata, error) {
	l.mu.Lock()
	gone := l.changes[i.Key].before
	l.mu.Unlock()
	a.DryRun = true
	var before, after *unstructured.Unstructured
	var err error
	action, asked := reconciler.Create, false
	switch {
	case gone != nil: // whether it can be created again was asked for by replaceable
		action, before, after = reconciler.Recreate, gone, desired(o)
	case i.mirror == nil: // its kind comes first
		if !l.p.comes(o.Key) {
			return nil, fmt.Errorf("%w: %s", api.ErrNoKind, o.Kind)
		}
		after = desired(o)
	case a.Absent:
		asked = true
		after, err = l.p.a.client.ApplyWhole(ctx, i.kind, o, a)
		if object.NotFound(err) && l.planned(object.Key{Kind: "Namespace", Name: o.Namespace}) != nil {
			after, err, asked = desired(o), nil, false // its namespace comes first
		}
	default:
		action, asked = reconciler.Update, true
		a.Version = "" // nothing is written, so what has changed meanwhile does not matter
		if before, err = l.p.a.client.GetWhole(ctx, i.kind, i.Key); err == nil {
			after, err = l.p.a.client.ApplyWhole(ctx, i.kind, o, a)
		}
	}
	if err != nil {
		return nil, err
	}
	l.change(i.Object, reconciler.Change{Action: action, Text: difference(before, after)})
	return l.foresee(ctx, i, after, asked), nil
}

// foresee remembers an object as it would be, and how healthy it would be at first. If the server
// was not asked, nobody says that the fields are ours; they would be.
func (l *plan) foresee(ctx context.Context, i *item, whole *unstructured.Unstructured, asked bool) *metav1.PartialObjectMetadata {
	after := meta.AsPartialObjectMetadata(whole)
	after.SetGroupVersionKind(whole.GroupVersionKind())
	verdict := l.p.a.judge.Ask(ctx, whole, i.HealthyWhen())
	l.p.results.Lock()
	l.p.health[i.Key] = seenHealth{version: after.ResourceVersion, hash: i.Hash(), Verdict: verdict}
	if !asked {
		l.p.checked[i.Key] = checkedVersion{version: after.ResourceVersion, hash: i.Hash()}
		// it counts as created from now on: see refuses
		l.p.ledger.edit(i.Key, func(entry *inventory.Entry) { entry.UID = cmp.Or(entry.UID, "planned") })
	}
	l.p.results.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.after[i.Key] = after
	return after
}

// planned returns an object as it would be after what the pass would have done by now; nil: it
// would not have done anything to it.
func (l *plan) planned(key object.Key) *metav1.PartialObjectMetadata {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.after[key]
}

// delete takes a live object for deleted. Whether it is created again shows later.
func (l *plan) delete(ctx context.Context, kind api.Kind, key object.Key, c plannedChange) error {
	whole, err := l.p.a.client.GetWhole(ctx, kind, key)
	if err != nil {
		return err
	}
	c.Key, c.before = key, whole
	c.Action, c.Text = reconciler.Prune, difference(whole, nil)
	l.add(c)
	return nil
}

// hold keeps what would be deleted if nothing held it back.
func (l *plan) hold(ctx context.Context, left *leftover) error {
	err := l.delete(ctx, left.kind, left.Key, plannedChange{Change: reconciler.Change{Held: left.held}, release: left.need() != object.Nobody})
	if object.NotFound(err) {
		return nil
	}
	if err != nil {
		return l.p.isolateLeftover(ctx, left, err)
	}
	return nil
}

// leftAlone keeps that an object which is not as wanted is left alone.
func (l *plan) leftAlone(i *item, reason string) {
	if l == nil {
		return
	}
	action := reconciler.Update
	if i.live == nil {
		action = reconciler.Create
	}
	l.change(i.Object, reconciler.Change{Action: action, Held: reason})
}

// apply applies an object over what is there, and returns its metadata as it is afterwards.
func (p *pass) apply(ctx context.Context, i *item, o *object.Object, a api.Apply) (*metav1.PartialObjectMetadata, error) {
	if p.plan != nil {
		return p.plan.apply(ctx, i, o, a)
	}
	return p.a.client.Apply(ctx, i.kind, o, a)
}

// delete deletes a live object, which must be as it was seen.
func (p *pass) delete(ctx context.Context, kind api.Kind, key object.Key, live *metav1.PartialObjectMetadata, need object.Need) error {
	if p.plan != nil {
		return p.plan.delete(ctx, kind, key, plannedChange{release: need != object.Nobody})
	}
	p.results.Lock()
	delete(p.unlabeled, key) // it is not as it was seen any more
	p.results.Unlock()
	return p.a.client.Delete(ctx, kind, live)
}

// put keeps the answer to an apply.
func (p *pass) put(i *item, live *metav1.PartialObjectMetadata) {
	if p.plan == nil {
		p.saw(i, live)
	}
}

// saw keeps a live object as the server has it: in its mirror, if the watch will tell when it is
// gone. What was seen while it bore no label does not count then.
func (p *pass) saw(i *item, live *metav1.PartialObjectMetadata) {
	p.results.Lock()
	defer p.results.Unlock()
	if live.Labels[object.Label] == "true" {
		delete(p.unlabeled, i.Key)
		i.mirror.Put(live)
		return
	}
	p.unlabeled[i.Key] = looked{live: live, at: time.Now()}
}

// now returns a live object as the pass has left it.
func (p *pass) now(i *item) *metav1.PartialObjectMetadata {
	if after := p.plan.planned(i.Key); after != nil || i.mirror == nil {
		return after
	}
	if live := i.mirror.Get(nameOf(i.Key)); live != nil {
		return live
	}
	p.results.Lock()
	defer p.results.Unlock()
	return p.unlabeled[i.Key].live
}

// comes reports whether the definition of a kind that the server does not have is there, or would
// be created.
func (p *pass) comes(of object.Key) bool {
	for _, i := range p.located {
		if definesKind(i.Object, of) && p.now(i) != nil {
			return true
		}
	}
	return false
}

// desired is an object as we want it, before a server has added to it.
func desired(o *object.Object) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: o.With("", object.Precondition{})}
}

// defines reports whether the kind of an object is defined by another one that is wanted.
func (w *wanted) defines(o *object.Object) bool {
	return slices.ContainsFunc(w.objects, func(d *object.Object) bool { return definesKind(d, o.Key) })
}

// definesKind reports whether an object is the definition of a kind.
func definesKind(d *object.Object, of object.Key) bool {
	if d.Kind != "CustomResourceDefinition" || d.Stage() != object.Definitions {
		return false
	}
	content := d.With("", object.Precondition{})
	group, _, _ := unstructured.NestedString(content, "spec", "group")
	kind, _, _ := unstructured.NestedString(content, "spec", "names", "kind")
	return group == of.Group && kind == of.Kind
}
