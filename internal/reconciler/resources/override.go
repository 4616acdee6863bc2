package resources

import (
	"context"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// overridden returns the first override with an effect that covers an object.
func (p *pass) overridden(key object.Key, effect reconciler.Effect) (reconciler.Override, bool) {
	at := slices.IndexFunc(p.overrides, func(each reconciler.Override) bool {
		return each.Effect == effect && each.Covers(key.Group, key.Kind, key.Namespace, key.Name)
	})
	if at < 0 {
		return reconciler.Override{}, false
	}
	return p.overrides[at], true
}

// leaveAlone reports whether an object that is not as wanted is paused. If API servers need it,
// they have to wait, so that is a failure.
func (p *pass) leaveAlone(ctx context.Context, i *item) bool {
	pause, paused := p.overridden(i.Key, reconciler.Pause)
	if paused {
		p.report.Paused++
		p.why[i.Key] = "it is paused: " + pause.String()
		p.plan.leftAlone(i, p.why[i.Key])
		if i.Need == object.Required {
			p.stillFailing(ctx, i.Object, i.live, p.why[i.Key])
		}
	}
	return paused
}

// takeOver finds out what has become of replacements that are recorded as unfinished: the leader
// before us may have died, or the server may have given no answer. What is gone is created,
// whatever is paused. Of what is there, the record is taken back: others have created it, or it was
// not deleted, and the request will not be carried out any more. A pause holds for it from then on.
func (p *pass) takeOver(ctx context.Context, items []*item) error {
	var unsure []*item
	for _, i := range items {
		if !p.replacing(i) || i.mirror == nil {
			continue
		}
		if i.live = p.now(i); i.live == nil {
			continue
		}
		p.adopt(i.Object, i.live) // it may be the new one
		if p.replacing(i) && !p.going(i) && !p.landing(i) && !p.asked[i.Key] {
			unsure = append(unsure, i)
		}
	}
	return each(ctx, unsure, func(ctx context.Context, i *item) error {
		if p.leave(i) {
			return nil
		}
		live, err := p.a.client.Get(ctx, i.kind, i.Key)
		switch {
		case object.NotFound(err):
			i.mirror.Remove(nameOf(i.Key), i.live.UID) // the watch is about to tell
			p.results.Lock()
			delete(p.unlabeled, i.Key)
			p.results.Unlock()
		case err != nil:
			if err = p.unanswered(ctx, err); !answered(err) {
				return err
			}
			p.askedNow(i.Object)
		default:
			if i.live = live; !p.going(i) && !p.landing(i) {
				p.ledger.notReplaced(i.Key)
			}
		}
		return nil
	})
}

// replacing reports whether an object was deleted to be created again, and is not yet, as far as is
// recorded.
func (p *pass) replacing(i *item) bool { return p.ledger.entry(i.Key).Replacing }

// landing reports whether a live object is the one that is being replaced, and the request that
// deletes it may still be carried out.
func (p *pass) landing(i *item) bool {
	entry := p.ledger.entry(i.Key)
	left := p.a.options.Landing - time.Since(entry.At)
	if left <= 0 || entry.UID != string(i.live.UID) {
		return false
	}
	p.wakeWithin(left)
	return true
}

// going reports whether a live object is the one that is being replaced, and its deletion has
// begun.
func (p *pass) going(i *item) bool {
	return i.live.DeletionTimestamp != nil && p.ledger.entry(i.Key).UID == string(i.live.UID)
}
