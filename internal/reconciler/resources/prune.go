package resources

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ironherd/ironherd/internal/reconciler/resources/api"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/mirror"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// leftover is an object that we have created, or were about to create, and that is no longer
// wanted.
type leftover struct {
	object.Key
	entry  inventory.Entry
	kind   api.Kind
	mirror *mirror.Mirror
	live   *metav1.PartialObjectMetadata
	// held is why it is not deleted now; empty: it may be.
	held string
	// settled tells that there is nothing to delete: it is gone or going, is not ours, or is to be
	// kept. Of what cannot be reached that is not known.
	settled bool
}

// need is that of the release which wanted it last, as the inventory has it: an annotation on the
// live object must not take it out of what protects the objects of manifests.
func (l *leftover) need() object.Need { return l.entry.Need }

// ours reports whether a live object is the one that we have created.
func (l *leftover) ours(live *metav1.PartialObjectMetadata) bool {
	return l.entry.Ours(string(live.UID), live.Annotations[object.Mark])
}

// object is what failures of it are reported of.
func (l *leftover) object() *object.Object {
	return &object.Object{Key: l.Key, Source: noLongerWanted, Need: l.need()}
}

// unwanted returns the entries of objects that are no longer wanted, in the reverse order of
// applying. What the release has kept, and is not selected, is left as it is: somebody may use it.
// An object of the same name that was in the manifests is theirs.
func (w *wanted) unwanted(entries map[object.Key]inventory.Entry) []*leftover {
	var over []*leftover
	for key, entry := range entries {
		if w.byKey[key] == nil && (!w.kept[key] || entry.Need == object.Nobody) {
			over = append(over, &leftover{Key: key, entry: entry})
		}
	}
	slices.SortFunc(over, func(a, b *leftover) int { return compareKeys(b.Key, a.Key) })
	return over
}

// prune deletes the objects that we have created and that are no longer wanted: those of another
// release, or those that were in the manifests. What another release has needed is not the
// manifests' business, so no fault in a manifest keeps it, and nobody is asked. But while nothing
// is known of them it is kept, and holds nothing up: it may be in them now. So is what that release
// only offered, while anything of them is not known.
func (p *pass) prune(ctx context.Context, release bool) error {
	over := p.want.unwanted(p.ledger.entries())
	if len(over) == 0 || p.want.unknown && release {
		return nil
	}
	if !release && !p.want.whole {
		if p.firstTime("unread") {
			p.a.log.WarnContext(ctx, "nothing is deleted while there are manifests that cannot be read, or that have just changed")
		}
		return nil
	}
	if !release {
		delete(p.logged, "unread")
	}
	if release { // before anything of theirs is waited for
		over = slices.DeleteFunc(over, func(l *leftover) bool { return l.need() == object.Nobody })
	}
	found, err := p.locateLeftovers(ctx, over, release)
	if err == nil {
		err = each(ctx, found, p.see)
	}
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(l *leftover) bool { return l.live == nil })
	if !release {
		p.holdLost(ctx, over, found)
	}
	var held []*leftover
	found = slices.DeleteFunc(found, func(l *leftover) bool {
		kept := p.keptForNow(ctx, l)
		if kept && l.held != "" {
			held = append(held, l)
		}
		return kept
	})
	p.reportUnread(held)
	if p.plan != nil {
		if err := each(ctx, held, p.plan.hold); err != nil {
			return err
		}
	}
	for len(found) > 0 { // by stages, from the last to the first
		n := slices.IndexFunc(found, func(l *leftover) bool { return l.Stage() != found[0].Stage() })
		if n < 0 {
			n = len(found)
		}
		if err := each(ctx, found[:n], p.remove); err != nil {
			return err
		}
		found = found[n:]
	}
	return nil
}

// keptForNow reports whether an object must not be deleted by this pass. If that may change by
// itself, or by somebody's word, it says so in held; but not of what has just gone from the
// manifests, which passes of the next half minute delete.
func (p *pass) keptForNow(ctx context.Context, l *leftover) bool {
	gone := p.justGone(l)
	if pause, paused := p.overridden(l.Key, reconciler.Pause); paused {
		p.report.Paused++
		l.held = "it is paused: " + pause.String()
		if l.need() == object.Required {
			p.stillFailing(ctx, l.object(), l.live, l.held)
		}
		return true
	}
	if l.Container() {
		if p.firstTime("kept " + l.Key.String()) {
			p.a.log.InfoContext(ctx, "no longer wanted, but kept: deleting it would delete what others have put into it",
				slog.String("object", l.Key.String()))
		}
		l.held = ""
		return true
	}
	if !p.want.whole && l.need() == object.Optional {
		l.held = mayBeUnread
		return true
	}
	// what takes its place may not exist yet
	gk := schema.GroupKind{Group: l.Group, Kind: l.Kind}
	if p.failing[failingKind{gk, true}] || l.need() == object.Nobody && p.failing[failingKind{gk, false}] {
		l.held = "something of its kind fails, and it may be what takes its place"
		return true
	}
	return l.held != "" || gone
}

// mayBeUnread is why what another release has left is not deleted while not everything is known
// that the manifests want.
const mayBeUnread = "it may be in a manifest that cannot be read, or that was written just now"

// reportUnread says what of another release is kept for that. Of what was written just now it says
// nothing: the next passes know.
func (p *pass) reportUnread(held []*leftover) {
	var kept []string
	for _, l := range held {
		if l.held == mayBeUnread {
			kept = append(kept, l.Key.String())
		}
	}
	if p.want.faulty && len(kept) > 0 {
		p.report.Failures = append(p.report.Failures, reconciler.Failure{
			Object: noLongerWanted,
			Reason: "objects that another release has left are kept, because a manifest that cannot be read may have them: " + strings.Join(kept, ", "),
		})
	}
}

// justGone reports whether passes have not found an object missing from the manifests for long
// enough. A plan has no passes before it, and shows what will be done.
func (p *pass) justGone(l *leftover) bool {
	if p.plan != nil || l.need() != object.Nobody {
		return false
	}
	if p.absent[l.Key].IsZero() {
		p.absent[l.Key] = time.Now()
	}
	left := p.a.options.Absence - time.Since(p.absent[l.Key])
	if left > 0 {
		p.wakeWithin(left)
	}
	return left > 0
}

// locateLeftovers finds leftovers in their mirrors. It leaves out those of kinds that cannot be
// followed now, and in the second round those of another release, which the first has seen to.
func (p *pass) locateLeftovers(ctx context.Context, over []*leftover, release bool) ([]*leftover, error) {
	var found []*leftover
	for _, l := range over {
		if p.kinds == nil { // a wanted kind is gone; API servers may wait for a leftover
			if !release {
				continue
			}
			if err := p.refreshKinds(ctx); err != nil {
				return nil, err
			}
		}
		kind, known, err := p.kindOfLeftover(ctx, l, release)
		if err != nil {
			return nil, err
		}
		if !known || !release && l.need() != object.Nobody {
			continue
		}
		m, err := p.mirror(ctx, kind)
		if err != nil {
			return nil, err
		}
		l.kind, l.mirror = kind, m
		if !p.inStep(ctx, &item{Object: l.object(), kind: kind, mirror: m}) {
			continue
		}
		l.live = p.now(&item{Object: l.object(), mirror: m})
		found = append(found, l)
	}
	return found, context.Cause(ctx)
}

// kindOfLeftover returns how a leftover is reached. If the server does not have its kind, that is a
// failure while the group cannot be asked for. Else nobody can reach an object of the kind, and the
// leftover is forgotten, but not before Options.Vanished: a server that starts lacks the groups of
// definitions and of other servers for a while. With a definition its objects are gone. Those of a
// kind that was only switched off (--runtime-config) come back with it, and are nobody's then.
func (p *pass) kindOfLeftover(ctx context.Context, l *leftover, release bool) (kind api.Kind, known bool, err error) {
	gk := schema.GroupKind{Group: l.Group, Kind: l.Kind}
	kind, err = p.kinds.Any(l.Key)
	unasked := p.kinds.Unasked(l.Group)
	own := release || l.need() == object.Nobody // the rest was asked for in the first round
	again := time.Since(p.kindsAt) >= min(vanishedEvery, p.a.options.Vanished)
	if unasked != nil {
		again = p.failures.due(l.Key, "", "")
	}
	if err != nil && own && again && p.kindsAt.Before(p.begun) {
		if err := p.refreshKinds(ctx); err != nil {
			return kind, false, err
		}
		kind, err = p.kinds.Any(l.Key)
		unasked = p.kinds.Unasked(l.Group)
	}
	switch {
	case err == nil:
		delete(p.vanished, gk)
		return kind, true, nil
	case unasked != nil:
		delete(p.vanished, gk)
		if own {
			p.missing(ctx, l.object(), fmt.Errorf("whether it is there cannot be asked: %w", unasked))
		}
		return kind, false, nil
	}
	since, vanished := p.vanished[gk]
	if !vanished {
		p.vanished[gk] = time.Now()
	}
	if release || !vanished || p.kindsAt.Sub(since) < p.a.options.Vanished {
		return kind, false, nil
	}
	l.settled = true
	if !p.kinds.Whole() {
		return kind, false, nil
	}
	p.ledger.forget(l.Key)
	p.a.log.InfoContext(ctx, "no longer wanted, and forgotten: the API server no longer has its kind", slog.String("object", l.Key.String()))
	return kind, false, nil
}

// vanishedEvery is how often the server is asked again for the kind of a leftover that it does not
// have.
const vanishedEvery = 30 * time.Second

// holdLost says in held why those that were found may not be deleted, if what is lost from the
// manifests is refused. What cannot be reached is counted, too: else many objects could go in
// parts.
func (p *pass) holdLost(ctx context.Context, over, found []*leftover) {
	var lost []object.Key
	for _, l := range over {
		created := l.live != nil || l.entry.UID != ""
		if l.need() == object.Nobody && !l.Container() && created && !l.settled {
			lost = append(lost, l.Key)
		}
	}
	refusal := p.a.refuses(ctx, p.want, p.ledger.entries(), lost)
	if refusal.reason == "" {
		return
	}
	p.report.Failures = append(p.report.Failures, reconciler.Failure{Object: noLongerWanted, Reason: refusal.String()})
	for _, l := range found {
		l.held = refusal.reason
	}
	if p.plan != nil {
		p.plan.approve = refusal.approve
	}
}

// see makes sure of one leftover. Its live object is nil afterwards unless it is there, is ours,
// and is not being deleted already; it is settled if one of that is known not to be so.
func (p *pass) see(ctx context.Context, l *leftover) error {
	if l.live == nil {
		if l.entry.UID == "" && time.Since(l.entry.At) < inventory.Settle {
			return nil // the request that creates it may be under way; the mirror will tell
		}
		if !p.dueLeftover(ctx, l) || p.leaveDeletion() {
			return nil
		}
		live, err := p.a.client.Get(ctx, l.kind, l.Key)
		switch {
		case object.NotFound(err):
			p.ledger.gone(l.Key, "")
			l.settled = true
			return nil
		case err != nil:
			return p.isolateLeftover(ctx, l, err)
		}
		l.live = live
		p.saw(&item{Object: l.object(), mirror: l.mirror}, live) // this pass may leave it to the next one
	}
	switch {
	case !l.ours(l.live):
		p.ledger.forget(l.Key)
		p.a.log.InfoContext(ctx, "no longer wanted, but left alone: it is not the object that we created",
			slog.String("object", l.Key.String()))
	case l.live.DeletionTimestamp != nil: // the mirror will see it go
	case l.live.Annotations[object.Prune] == object.NeverPrune: // people want to keep it
	default:
		return nil
	}
	l.live, l.settled = nil, true
	return nil
}

// remove deletes one object, of which see has made sure, and removes its entry when it is gone.
func (p *pass) remove(ctx context.Context, l *leftover) error {
	if !p.dueLeftover(ctx, l) || p.leaveDeletion() {
		return nil
	}
	err := p.delete(ctx, l.kind, l.Key, l.live, l.need())
	switch {
	case apierrors.IsConflict(err):
		return p.isolateLeftover(ctx, l, errMeanwhile)
	case object.NotFound(err):
		p.ledger.gone(l.Key, l.live.Annotations[object.Mark])
		return nil
	case err != nil:
		return p.isolateLeftover(ctx, l, fmt.Errorf("delete: %w", err))
	}
	if len(l.live.Finalizers) == 0 && l.Kind != "Pod" { // it is gone with the answer
		l.mirror.Remove(nameOf(l.Key), l.live.UID)
		p.ledger.gone(l.Key, l.live.Annotations[object.Mark])
	}
	p.succeeded(&p.report.Pruned, l.Key)
	said := "deleted: it is no longer wanted"
	if len(l.live.Finalizers) > 0 {
		said = "no longer wanted: it goes when its finalizers are gone: " + strings.Join(l.live.Finalizers, ", ")
	}
	p.tell(l.object(), l.live, eventPruned, said)
	p.a.log.InfoContext(ctx, "object pruned", slog.String("object", l.Key.String()), slog.String("outcome", said))
	return nil
}

// dueLeftover reports whether a pass may ask for an object now, or try to delete it. If not, it
// reports the object's last failure again.
func (p *pass) dueLeftover(ctx context.Context, l *leftover) bool {
	p.results.Lock()
	defer p.results.Unlock()
	version := ""
	if l.live != nil {
		version = l.live.ResourceVersion
	}
	if !p.failures.due(l.Key, "", version) {
		p.stillFailing(ctx, l.object(), l.live, p.failures[l.Key].reason)
		return false
	}
	return !p.waitsForOthers(l.object(), l.live != nil)
}

const noLongerWanted = "what is no longer wanted"

func (p *pass) isolateLeftover(ctx context.Context, l *leftover, err error) error {
	i := &item{Object: l.object(), live: l.live}
	if l.live != nil {
		i.version = l.live.ResourceVersion
	}
	return p.isolate(ctx, i, err)
}
