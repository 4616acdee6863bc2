package resources

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ironherd/ironherd/internal/reconciler"
	"github.com/ironherd/ironherd/internal/reconciler/resources/api"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/mirror"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// minMaxPrune is the smallest default of Options.MaxPrune.
const minMaxPrune = 10

// leftover is an object that we have created, or were about to create, and that is no longer
// wanted.
type leftover struct {
	object.Key
	entry  inventory.Entry
	kind   api.Kind
	mirror *mirror.Mirror
	live   *metav1.PartialObjectMetadata
}

// unwanted returns the entries of objects that are no longer wanted, in the reverse order of
// applying.
func (w *wanted) unwanted(entries map[object.Key]inventory.Entry) []*leftover {
	var over []*leftover
	for key, entry := range entries {
		if w.byKey[key] == nil {
			over = append(over, &leftover{Key: key, entry: entry})
		}
	}
	slices.SortFunc(over, func(a, b *leftover) int { return compareKeys(b.Key, a.Key) })
	return over
}

// tooMany returns why n objects may not be deleted in one pass; empty if they may.
func (o Options) tooMany(n, created int) (reason string) {
	most := o.MaxPrune
	if most == 0 {
		most = max(created/2, minMaxPrune)
	}
	if n <= most {
		return ""
	}
	return fmt.Sprintf("%d of the %d objects that we have created are no longer wanted, which is more than %d: none is deleted", n, created, most)
}

// prune deletes the objects that we have created and that are no longer wanted.
func (p *pass) prune(ctx context.Context) error {
	entries := p.ledger.entries()
	over := p.want.unwanted(entries)
	if len(over) == 0 {
		return nil
	}
	if !p.want.whole {
		if p.firstTime("unread") {
			p.a.log.WarnContext(ctx, "nothing is deleted while there are manifests that cannot be read")
		}
		return nil
	}
	delete(p.logged, "unread")
	over, err := p.deletable(ctx, over)
	if err != nil {
		return err
	}
	existing := 0
	for _, l := range over {
		if l.live != nil {
			existing++
		}
	}
	if reason := p.a.options.tooMany(existing, len(entries)); reason != "" {
		p.report.Failures = append(p.report.Failures, reconciler.Failure{Object: noLongerWanted, Reason: reason})
		return nil
	}
	for len(over) > 0 { // by stages, from the last to the first
		n := slices.IndexFunc(over, func(l *leftover) bool { return l.Stage() != over[0].Stage() })
		if n < 0 {
			n = len(over)
		}
		if err := each(ctx, over[:n], p.remove); err != nil {
			return err
		}
		over = over[n:]
	}
	return nil
}

// deletable leaves out the objects that are kept for now, and finds the others in their mirrors.
func (p *pass) deletable(ctx context.Context, over []*leftover) ([]*leftover, error) {
	var found []*leftover
	for _, l := range over {
		gk := schema.GroupKind{Group: l.Group, Kind: l.Kind}
		if l.Container() {
			if p.firstTime("kept " + l.Key.String()) {
				p.a.log.InfoContext(ctx, "no longer wanted, but kept: deleting it would delete what others have put into it",
					slog.String("object", l.Key.String()))
			}
			continue
		}
		if p.failing[gk] {
			continue // its replacement may not exist yet
		}
		if p.kinds == nil {
			continue
		}
		kind, err := p.kinds.Any(l.Key)
		if err != nil {
			if p.kinds.Whole() {
				p.ledger.forget(l.Key) // all objects of a kind are gone with the kind
			}
			continue
		}
		m, err := p.mirror(ctx, kind)
		if err != nil {
			return nil, err
		}
		l.kind, l.mirror = kind, m
		if !p.inStep(ctx, &item{Object: &object.Object{Key: l.Key}, kind: kind, mirror: m}) {
			continue
		}
		l.live = m.Get(nameOf(l.Key))
		found = append(found, l)
	}
	return found, context.Cause(ctx)
}

// remove deletes one object if we have created it, and removes its entry when it is gone.
func (p *pass) remove(ctx context.Context, l *leftover) error {
	if l.live == nil {
		if l.entry.UID == "" && time.Since(l.entry.At) < inventory.Settle {
			return nil // the request that creates it may be under way; the mirror will tell
		}
		live, err := p.a.client.Get(ctx, l.kind, l.Key)
		if notFound(err) {
			p.ledger.forget(l.Key)
			return nil
		}
		if err != nil {
			return p.isolateLeftover(ctx, l, err)
		}
		l.live = live
	}
	switch {
	case !l.entry.Ours(string(l.live.UID), l.live.Annotations[object.Mark]):
		p.ledger.forget(l.Key)
		p.a.log.InfoContext(ctx, "no longer wanted, but left alone: it is not the object that we created",
			slog.String("object", l.Key.String()))
		return nil
	case l.live.DeletionTimestamp != nil:
		return nil // the mirror will see it go
	case !p.dueLeftover(l):
		return nil
	}
	err := p.a.client.Delete(ctx, l.kind, l.live)
	switch {
	case apierrors.IsConflict(err):
		return p.isolateLeftover(ctx, l, errMeanwhile)
	case notFound(err):
		p.ledger.forget(l.Key)
		return nil
	case err != nil:
		return p.isolateLeftover(ctx, l, fmt.Errorf("delete: %w", err))
	}
	if len(l.live.Finalizers) == 0 && l.Kind != "Pod" { // it is gone with the answer
		l.mirror.Remove(nameOf(l.Key), l.live.UID)
		p.ledger.forget(l.Key)
	}
	p.succeeded(&p.report.Pruned, l.Key)
	p.a.log.InfoContext(ctx, "deleted: it is no longer wanted", slog.String("object", l.Key.String()))
	return nil
}

// dueLeftover reports whether a pass may try to delete an object now. If not, it reports the
// object's last failure again.
func (p *pass) dueLeftover(l *leftover) bool {
	p.results.Lock()
	defer p.results.Unlock()
	due := p.failures.due(l.Key, "", l.live.ResourceVersion)
	if !due {
		p.stillFailing(&object.Object{Key: l.Key, Source: noLongerWanted}, p.failures[l.Key].reason)
	}
	return due
}

const noLongerWanted = "what is no longer wanted"

func (p *pass) isolateLeftover(ctx context.Context, l *leftover, err error) error {
	return p.isolate(ctx, &item{Object: &object.Object{Key: l.Key, Source: noLongerWanted}, live: l.live}, err)
}
