package resources

import (
	"context"
	"slices"

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
		p.plan.leave(i, p.why[i.Key])
		if i.Need == object.Required {
			p.stillFailing(ctx, i.Object, i.live, p.why[i.Key])
		}
	}
	return paused
}

// takeOver finds out, once in a session, whether the leader before us has deleted an object to
// create it again, and has not created it. That is to be finished, whatever is paused.
func (p *pass) takeOver(i *item) {
	if !p.inherited[i.Key] {
		return
	}
	delete(p.inherited, i.Key)
	if i.live == nil && i.Replaceable() {
		p.halfway[i.Key] = true
	}
}
