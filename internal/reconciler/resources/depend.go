package resources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// dependencies is which wanted objects are applied only after others.
type dependencies struct {
	of map[object.Key][]*object.Object
	// never has the objects that can never be applied, and why.
	never map[object.Key]string
	// level is 0 of an object that depends on nothing, and else more than that of everything that it
	// depends on.
	level map[object.Key]int
}

// resolve finds out what depends on what.
func (w *wanted) resolve() {
	d := dependencies{of: map[object.Key][]*object.Object{}, never: map[object.Key]string{}, level: map[object.Key]int{}}
	w.dependencies = d
	if !slices.ContainsFunc(w.objects, func(o *object.Object) bool { return o.DependsOn() != nil }) {
		return
	}
	byName := map[object.Key][]*object.Object{} // without their group
	for _, o := range w.objects {
		name := o.Key
		name.Group = ""
		byName[name] = append(byName[name], o)
	}
	for _, o := range w.objects {
		for _, r := range o.DependsOn() {
			named := slices.DeleteFunc(slices.Clone(byName[object.Key{Kind: r.Kind, Namespace: r.Namespace, Name: r.Name}]),
				func(other *object.Object) bool { return !r.Names(other.Key) })
			switch len(named) {
			case 0:
				d.never[o.Key] = fmt.Sprintf("it depends on %s, which is not among what is wanted", r)
			case 1:
				d.of[o.Key] = append(d.of[o.Key], named[0])
			default:
				d.never[o.Key] = fmt.Sprintf("it depends on %s, and there are several: write the group, as in %s.%s", r, r.Kind, named[0].Group)
			}
		}
	}
	for _, o := range w.objects {
		d.visit(o.Key, nil)
	}
}

// visiting is the level of an object whose dependencies are being visited.
const visiting = -1

// visit finds the level of an object, and refuses those that depend on themselves. Path leads to
// it.
func (d dependencies) visit(key object.Key, path []object.Key) {
	level, visited := d.level[key]
	switch {
	case visited && level == visiting:
		cycle := path[slices.Index(path, key):]
		for _, each := range cycle {
			d.never[each] = "it depends on itself: " + told(cycle)
		}
		return
	case visited:
		return
	}
	d.level[key] = visiting
	level = 0
	for _, other := range d.of[key] {
		d.visit(other.Key, append(path, key))
		level = max(level, d.level[other.Key]+1)
	}
	d.level[key] = level
}

// told names the objects of a cycle in order, and the first one again at the end.
func told(cycle []object.Key) string {
	const most = 8
	var names []string
	for n, key := range cycle {
		if n == most {
			names = append(names, "…")
			break
		}
		names = append(names, key.String())
	}
	return strings.Join(append(names, cycle[0].String()), " → ")
}

// levels returns the levels of items, lowest first.
func (w *wanted) levels(items []*item) []int {
	found := map[int]bool{}
	for _, i := range items {
		found[w.dependencies.level[i.Key]] = true
	}
	return slices.Sorted(maps.Keys(found))
}

// admissible returns the items of a level that need not wait. What is there already, as it was
// applied last, is kept so, whatever becomes of what it depends on.
func (p *pass) admissible(ctx context.Context, items []*item, level int) []*item {
	var due []*item
	for _, i := range items {
		if p.want.dependencies.level[i.Key] != level {
			continue
		}
		if p.leave(i) {
			continue
		}
		if i.live == nil || !i.LastApplied(i.live) {
			waits, detail, left := p.unmet(ctx, i.Key)
			if left && i.Key == p.first {
				waits = "it waits for a pass that has the time to look at everything that it depends on"
			} else if left {
				p.leaveNow(i)
				continue
			}
			if waits != "" {
				p.waits(ctx, i, waits, detail)
				continue
			}
		}
		due = append(due, i)
	}
	return due
}

// unmet says for which dependency an object waits; empty: for none. Detail says more of its health,
// which changes often. Left tells that it is too late to look at a dependency, or to apply the
// object.
func (p *pass) unmet(ctx context.Context, key object.Key) (waits, detail string, left bool) {
	for _, other := range p.want.dependencies.of[key] {
		i := p.located[other.Key]
		if i == nil {
			return fmt.Sprintf("it waits for %s, which is not as wanted", other.Key), "", false
		}
		live := p.now(i)
		if live == nil || !p.asWanted(i, live) {
			return fmt.Sprintf("it waits for %s, which is not as wanted", other.Key), "", false
		}
		if _, known := p.lookedAt(i, live); !known && p.tooLateToLook(key) {
			return "", "", true
		}
		if v := p.look(ctx, i, live); !v.OK {
			return fmt.Sprintf("it waits for %s, which is not healthy", other.Key), ": " + v.Reason, false
		}
	}
	return "", "", p.spent()
}

// waits reports an object that is not applied before others are healthy. It is no news that the
// others come nearer to that.
func (p *pass) waits(ctx context.Context, i *item, waits, detail string) {
	if p.news(i.Object, i.live, waits, waits+detail) {
		p.a.log.InfoContext(ctx, "an object waits for what it depends on", slog.String("object", i.Key.String()), slog.String("reason", waits+detail))
	}
	p.reportFailure(i.Object, waits+detail)
	p.hadTurn(i.Object, waits+detail)
}

// refuse reports objects that depend on themselves or on what is not wanted, and returns the
// others.
func (p *pass) refuse(ctx context.Context, objects []*object.Object) []*object.Object {
	return slices.DeleteFunc(objects, func(o *object.Object) bool {
		reason, refused := p.want.dependencies.never[o.Key]
		if refused {
			p.missing(ctx, o, errors.New(reason))
		}
		return refused
	})
}

// refusals returns what can never be applied, as faults.
func (w *wanted) refusals() (faults []reconciler.Failure) {
	for _, o := range w.objects {
		if reason, refused := w.dependencies.never[o.Key]; refused {
			faults = append(faults, reconciler.Failure{Object: o.Title(), Reason: reason})
		}
	}
	return faults
}

// asWanted reports whether nothing is to be done to a live object.
func (p *pass) asWanted(i *item, live *metav1.PartialObjectMetadata) bool {
	return i.CreateOnly() && live.DeletionTimestamp == nil || p.upToDate(i.Object, live)
}
