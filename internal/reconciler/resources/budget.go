package resources

import (
	"fmt"
	"maps"
	"time"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// What the manifests want may hang: a webhook that does not answer costs each of its objects
// api.Timeout. So a pass begins with none of them, and deletes nothing, once Options.Budget is
// spent. Another pass follows at once, and looks at what the release needs first. What has failed,
// was changed, or has waited for what it depends on, had its turn. It is not tried again before a
// pass has left nothing, however many passes that takes: else it would keep the others from being
// tried for ever. That holds even where it changes meanwhile, because something may change it all
// the time.
//
// What the server was asked and has answered, however slowly, is not asked again for as long: a
// pass goes on where the one before it has ended. Only the health of what others depend on may be
// another one each time. So an object is left, without a turn, if half of the budget is gone before
// all that it depends on is looked at. The first one whose dependencies a pass looks at, before
// that, has all the rest. If even that is too little, that was its turn.

// budget is for how long a pass works on what the manifests want, and what it has left.
type budget struct {
	// ends is zero while nothing bounds the pass.
	ends time.Time
	// left are wanted objects that were not looked at, and unpruned tells that deletions were not
	// done. The lock of the pass guards both.
	left     map[object.Key]bool
	unpruned bool
	// first is the first object of which dependencies were looked at.
	first object.Key
	// behind tells that something might have been tried, but that it had its turn.
	behind bool
}

// fromManifests is what is reported of those that are left.
const fromManifests = "what comes from manifests"

// startBudget begins to count the time.
func (p *pass) startBudget() {
	if p.plan == nil {
		p.ends = time.Now().Add(p.a.options.Budget)
	}
}

// uncounted does not count the time since then: a store of the inventory that hangs is no reason to
// leave what is there as it is.
func (p *pass) uncounted(since time.Time) {
	if !p.ends.IsZero() {
		p.ends = p.ends.Add(time.Since(since))
	}
}

// spent reports whether nothing of the manifests may be begun any more.
func (p *pass) spent() bool { return !p.ends.IsZero() && !time.Now().Before(p.ends) }

// leave reports whether an object is left to the next pass.
func (p *pass) leave(i *item) bool {
	if !p.spent() {
		return false
	}
	p.leaveNow(i)
	return true
}

// leaveNow leaves an object to the next pass.
func (p *pass) leaveNow(i *item) {
	p.results.Lock()
	defer p.results.Unlock()
	p.left[i.Key] = true
	p.why[i.Key] = "it is left to the next pass"
}

// tooLateToLook reports whether nothing that an object depends on may be looked at any more.
func (p *pass) tooLateToLook(key object.Key) bool {
	if p.ends.IsZero() {
		return false
	}
	late := time.Until(p.ends) < p.a.options.Budget/2
	if p.first == (object.Key{}) && !late {
		p.first = key
	}
	if p.first == key {
		return p.spent()
	}
	return late
}

// forgetTurns has all tried again that had their turn, and asked after.
func (s *session) forgetTurns() {
	clear(s.turns)
	clear(s.asked)
}

// forgetLooks forgets what was seen too long ago of objects that no watch tells of.
func (s *session) forgetLooks() {
	if !s.unfinished {
		maps.DeleteFunc(s.unlabeled, func(_ object.Key, l looked) bool { return time.Since(l.at) >= s.a.options.LookEvery })
	}
}

// leaveDeletion reports whether a deletion is left to the next pass.
func (p *pass) leaveDeletion() bool {
	if !p.spent() {
		return false
	}
	p.results.Lock()
	defer p.results.Unlock()
	p.unpruned = true
	return true
}

// brokenOff reports whether anything is left to the next pass.
func (p *pass) brokenOff() bool { return len(p.left) > 0 || p.unpruned }

// hadTurn keeps that an object had its turn, and what is against it. What the release wants waits
// for no others.
func (p *pass) hadTurn(o *object.Object, why string) {
	if o.Need == object.Nobody {
		p.turns[o.Key] = why
	}
}

// turn returns what was against an object when it had its turn; false: it had none yet.
func (p *pass) turn(o *object.Object) (why string, had bool) {
	if o.Need != object.Nobody {
		return "", false
	}
	why, had = p.turns[o.Key]
	return why, had
}

// waitsForOthers reports whether an object that might be tried had its turn already. It reports
// again what is against it, which is no news. One that was made, and is there, holds up nothing of
// its kind.
func (p *pass) waitsForOthers(o *object.Object, there bool) bool {
	why, had := p.turn(o)
	if !had {
		return false
	}
	p.behind = true
	if gist, told := p.said[o.Key]; told {
		p.saying[o.Key] = gist
	}
	if why == wasChanged && there && p.checked[o.Key].hash == o.Hash() {
		p.reportUndone(o, why)
	} else {
		p.reportFailure(o, why)
	}
	return true
}

// askedNow keeps that the server was asked what has become of the replacement of an object: it is
// gone, or there was no answer.
func (p *pass) askedNow(o *object.Object) {
	p.results.Lock()
	defer p.results.Unlock()
	if o.Need == object.Nobody {
		p.asked[o.Key] = true
	}
}

// endBudget says that something is left, and has the next pass come soon. If nothing is, whatever
// had its turn may be tried again; no pause ends then that would wake a pass for it.
func (p *pass) endBudget() {
	if p.unfinished = p.brokenOff(); !p.unfinished {
		p.forgetTurns()
		if p.behind {
			p.wakeWithin(minPause)
		}
		return
	}
	p.ownerless[fromManifests] = true
	p.report.Failures = append(p.report.Failures, reconciler.Failure{
		Object: fromManifests, Reason: fmt.Sprintf("not everything could be done within %s: the rest is left to the next pass", p.a.options.Budget),
	})
	p.wakeWithin(minPause)
}
