package resources

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ironherd/ironherd/internal/reconciler/resources/api"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// plan is one Plan.
type plan struct {
	a     *Applier
	want  *wanted
	kinds *api.Kinds
	known map[object.Key]inventory.Entry

	mu      sync.Mutex
	changes map[object.Key]reconciler.Change
	diff    reconciler.Diff
}

// Plan implements reconciler.Planner. The server is asked what it would make of each apply, so that
// what is shown is what a pass does.
func (a *Applier) Plan(ctx context.Context) (reconciler.Diff, error) {
	ctx = a.client.Logging(ctx)
	p := &plan{a: a, want: a.want(), changes: map[object.Key]reconciler.Change{}}
	p.diff.Objects, p.diff.Failures = len(p.want.objects), slices.Clone(p.want.faults)
	kinds, err := a.client.Kinds(ctx)
	if err != nil {
		return reconciler.Diff{}, err
	}
	known, _, faults, err := inventory.Read(ctx, a.client.ConfigMaps(inventory.Namespace), 1)
	if err != nil {
		return reconciler.Diff{}, err
	}
	if faults != nil {
		p.fail(inventoryKey.String(), faults)
	}
	p.kinds, p.known = kinds, known.Entries
	if err := each(ctx, p.want.objects, p.object); err != nil {
		return reconciler.Diff{}, err
	}
	for _, o := range p.want.objects {
		if change, ok := p.changes[o.Key]; ok {
			p.diff.Changes = append(p.diff.Changes, change)
		}
	}
	if err := p.prune(ctx); err != nil {
		return reconciler.Diff{}, err
	}
	slices.SortFunc(p.diff.Failures, func(a, b reconciler.Failure) int { return strings.Compare(a.Object, b.Object) })
	return p.diff, nil
}

func (p *plan) fail(object string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.diff.Failures = append(p.diff.Failures, reconciler.Failure{Object: object, Reason: err.Error()})
}

func (p *plan) change(action reconciler.Action, key object.Key, before, after *unstructured.Unstructured) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changes[key] = reconciler.Change{Action: action, Object: key.String(), Text: difference(before, after)}
}

// object finds out what a pass would do to one object.
func (p *plan) object(ctx context.Context, o *object.Object) error {
	if reason, refused := p.want.dependencies.refused[o.Key]; refused {
		p.fail(o.Key.String()+" ("+o.Source+")", errors.New(reason))
		return nil
	}
	kind, err := p.kinds.Of(o)
	if errors.Is(err, api.ErrNoKind) && p.want.defines(o) {
		// as it is wanted: there is no server yet that could add to it
		p.change(reconciler.Create, o.Key, nil, asWanted(o))
		return nil
	}
	if err != nil {
		p.fail(o.Key.String()+" ("+o.Source+")", err)
		return nil
	}
	live, err := p.a.client.GetWhole(ctx, kind, o.Key)
	if notFound(err) {
		err = p.create(ctx, kind, o)
	} else if err == nil {
		err = p.update(ctx, kind, o, live)
	}
	if err != nil && !answered(err) {
		return fmt.Errorf("%s: %w", o.Key, err)
	}
	if err != nil {
		p.fail(o.Key.String()+" ("+o.Source+")", err)
	}
	return nil
}

func (p *plan) create(ctx context.Context, kind api.Kind, o *object.Object) error {
	namespace := object.Key{Kind: "Namespace", Name: o.Namespace}
	after, err := p.a.client.ApplyWhole(ctx, kind, o, api.Apply{DryRun: true, Precondition: object.Precondition{Absent: true}})
	if notFound(err) && p.want.byKey[namespace] != nil {
		after, err = asWanted(o), nil // its namespace comes first
	}
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	p.change(reconciler.Create, o.Key, nil, after)
	return nil
}

func (p *plan) update(ctx context.Context, kind api.Kind, o *object.Object, live *unstructured.Unstructured) error {
	if live.GetDeletionTimestamp() != nil {
		return errDeleting
	}
	if o.UpToDate(live) || o.CreateOnly() {
		return nil
	}
	ours := p.known[o.Key].Ours(string(live.GetUID()), live.GetAnnotations()[object.Mark])
	apply := p.a.howToApply(o, live, ours)
	apply.DryRun = true
	over, err := o.Over(live)
	if err != nil {
		return err
	}
	after, err := p.a.client.ApplyWhole(ctx, kind, over, apply)
	switch {
	case apierrors.IsConflict(err):
		return conflict(err)
	case apierrors.IsInvalid(err):
		if err := p.a.replaceable(ctx, kind, o, ours, err); err != nil {
			return err
		}
		p.change(reconciler.Recreate, o.Key, live, asWanted(o))
		return nil
	case err != nil:
		return fmt.Errorf("apply: %w", err)
	}
	p.change(reconciler.Update, o.Key, live, after)
	return nil
}

// prune finds out what a pass would delete, and what it would if it did not hold it back.
func (p *plan) prune(ctx context.Context) error {
	var deleted, lost []*leftover
	changes := map[*leftover]reconciler.Change{}
	for _, l := range p.want.unwanted(p.known) {
		kind, err := p.kinds.Any(l.Key)
		if err != nil || l.Container() {
			continue
		}
		live, err := p.a.client.GetWhole(ctx, kind, l.Key)
		if notFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", l.Key, err)
		}
		if live.GetAnnotations()[object.Prune] == object.NeverPrune {
			continue
		}
		if live.GetDeletionTimestamp() != nil || !l.entry.Ours(string(live.GetUID()), live.GetAnnotations()[object.Mark]) {
			continue
		}
		changes[l] = reconciler.Change{Action: reconciler.Prune, Object: l.Key.String(), Text: difference(live, nil)}
		deleted = append(deleted, l)
		if object.NeedOf(live.GetAnnotations()) == object.Nobody {
			lost = append(lost, l)
		}
	}
	keep := !p.want.whole // as a pass
	held := ""
	if !keep {
		keys := make([]object.Key, len(lost))
		for n, l := range lost {
			keys[n] = l.Key
		}
		refusal := p.a.refuses(ctx, p.want, p.known, keys)
		if held = refusal.reason; held != "" {
			p.diff.Failures = append(p.diff.Failures, reconciler.Failure{Object: noLongerWanted, Reason: refusal.String()})
			p.diff.Approve = refusal.approve
		}
	}
	for _, l := range deleted {
		change := changes[l]
		if slices.Contains(lost, l) {
			if keep {
				continue
			}
			change.Held = held
		}
		p.diff.Changes = append(p.diff.Changes, change)
	}
	return nil
}

// asWanted is an object as we want it, before a server has added to it.
func asWanted(o *object.Object) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: o.With("", object.Precondition{})}
}

// defines reports whether the kind of an object is defined by another one that is wanted.
func (w *wanted) defines(o *object.Object) bool {
	for _, d := range w.objects {
		if d.Kind != "CustomResourceDefinition" || d.Stage() != object.Definitions {
			continue
		}
		content := d.With("", object.Precondition{})
		group, _, _ := unstructured.NestedString(content, "spec", "group")
		kind, _, _ := unstructured.NestedString(content, "spec", "names", "kind")
		if group == o.Group && kind == o.Kind {
			return true
		}
	}
	return false
}
