package resources

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// The pause before an object is tried again grows from minPause to maxPause.
const (
	minPause = 100 * time.Millisecond
	maxPause = 30 * time.Second
)

// maxAbortedPause is the longest pause after a pass that could not go on.
const maxAbortedPause = 5 * time.Second

// backoff returns minPause, doubled n times, but no more than most.
func backoff(n int, most time.Duration) time.Duration { return min(minPause<<min(n, 20), most) }

// soonest is the shortest of some waits, if there is any.
type soonest struct {
	in  time.Duration
	any bool
}

func (s *soonest) add(in time.Duration, ok bool) {
	if ok && (!s.any || in < s.in) {
		*s = soonest{in, ok}
	}
}

// failure is what is known of an object that failed.
type failure struct {
	attempts int
	until    time.Time
	reason   string
	// hash is that of the wanted object, version that of the live one. If either has changed, the
	// object is tried again at once.
	hash, version string
}

// failures are the objects that failed when they were tried last.
type failures map[object.Key]failure

// maxReason is how many bytes the reason of a failure has at most: what a server or a parser says
// may name each of many fields.
const maxReason = 1 << 10

// shorten makes every reason at most that long.
func shorten(all []reconciler.Failure) {
	for n := range all {
		all[n].Reason = clip(all[n].Reason, maxReason)
	}
}

// inOneLine returns what failed as one error; nil: nothing. It names the first failure that API
// servers may have to wait for, if there is one, because that is why /healthz shows the error.
func inOneLine(all []reconciler.Failure) error {
	if len(all) == 0 {
		return nil
	}
	first := max(0, slices.IndexFunc(all, func(f reconciler.Failure) bool { return f.Required }))
	return fmt.Errorf("%d of what is wanted could not be done, or does not stay so; first: %s: %s", len(all), all[first].Object, all[first].Reason)
}

// due reports whether an object may be tried now.
func (f failures) due(key object.Key, hash, version string) bool {
	last, failed := f[key]
	return !failed || last.hash != hash || last.version != version || !time.Now().Before(last.until)
}

// failed records a failure.
func (f failures) failed(key object.Key, hash, version, reason string) {
	last := f[key]
	next := failure{attempts: last.attempts + 1, reason: reason, hash: hash, version: version}
	if last.hash != hash {
		next.attempts = 1
	}
	pause := backoff(next.attempts-1, maxPause)
	next.until = time.Now().Add(pause - rand.N(pause/4))
	f[key] = next
}

// next returns how long it takes until an object may be tried again; false if there is none. What
// might be tried already when the pass began, and has not been, waits for something else: for what
// it depends on, say. No pause ends that.
func (f failures) next(begun time.Time) (time.Duration, bool) {
	var first soonest
	for _, each := range f {
		first.add(max(time.Until(each.until), minPause), each.until.After(begun))
	}
	return first.in, first.any
}

// keepOnly forgets the objects for which keys returns false.
func (f failures) keepOnly(keys func(object.Key) bool) {
	for key := range f {
		if !keys(key) {
			delete(f, key)
		}
	}
}

// repairs are the objects in which drift has been repaired. If somebody else changes an object
// again and again, it is repaired at once a few times, and then ever less often.
type repairs map[object.Key]repair

type repair struct {
	n    int
	last time.Time
	// why is what there is to tell if that goes on: changedAgain, or deletedAgain.
	why string
}

const (
	changedAgain = "others change it again and again; the sooner they do, the longer its repair waits"
	deletedAgain = "others delete it again and again; the sooner they do, the longer its creation waits"
)

const (
	freeRepairs  = 5
	repairsReset = time.Minute
)

// until returns when the object may be repaired next.
func (r repair) until() time.Time {
	if r.n < freeRepairs {
		return r.last
	}
	return r.last.Add(backoff(r.n-freeRepairs, maxPause))
}

// told returns how long it is still told that others undo the object again and again: until there
// was no repair for repairsReset. That is told also while the object is as wanted. Who undoes it
// slowly is else never told of, for no repair has to wait then.
func (r repair) told() time.Duration {
	if r.n <= freeRepairs {
		return 0
	}
	return time.Until(r.last.Add(repairsReset))
}

// add records a repair, and what there is to tell if others go on like that.
func (r repairs) add(key object.Key, why string) {
	now := time.Now()
	for other, each := range r {
		if now.Sub(each.last) > repairsReset {
			delete(r, other)
		}
	}
	r[key] = repair{n: r[key].n + 1, last: now, why: why}
}

// tooOften reports whether an object has been repaired so often that the next repair must wait.
func (r repairs) tooOften(key object.Key) bool { return time.Now().Before(r[key].until()) }

// next returns how long it takes until a repair that waits may be done, or until it is no longer
// told that there were many; false if there is none.
func (r repairs) next() (time.Duration, bool) {
	var first soonest
	for _, each := range r {
		left := time.Until(each.until())
		first.add(left, left > 0)
		told := each.told()
		first.add(told, told > 0)
	}
	return first.in, first.any
}

// reportFights puts in the report what others undo again and again and is as wanted at the moment.
// So nothing waits for it: no API server, and nothing of its kind that is to be deleted.
func (p *pass) reportFights(ctx context.Context) {
	for _, o := range p.want.objects {
		fight := p.repairs[o.Key]
		if fight.told() <= 0 || p.why[o.Key] != "" { // what waits, fails or is paused has been told
			continue
		}
		var live *metav1.PartialObjectMetadata
		if i := p.located[o.Key]; i != nil {
			live = p.now(i)
		}
		if p.news(o, live, fight.why, fight.why) {
			p.a.log.WarnContext(ctx, "others undo an object again and again", slog.String("object", o.Key.String()), slog.String("source", o.Source))
		}
		p.report.Failures = append(p.report.Failures, reconciler.Failure{Object: o.Title(), Reason: fight.why})
	}
}

// wake signals the next pass for when there may be something to do that no watch will tell: an
// object to be tried again, or a manifest that counts by then.
func (p *pass) wake(err error) {
	var first soonest
	first.add(p.failures.next(p.begun))
	first.add(p.repairs.next())
	if p.sawHealth.Load() || !p.lookAgain.Load() {
		p.blind, p.lookAt = 0, p.begun
	}
	if p.lookAgain.Load() {
		if !p.begun.Before(p.lookAt) { // else the pass was made for something else
			p.lookAt = time.Now().Add(min(lookAgainIn<<min(p.blind, 5), maxPause))
			p.blind++
		}
		first.add(time.Until(p.lookAt), true)
	}
	first.add(p.due.in, p.due.any)
	first.add(p.a.options.Settled, p.want.unsettled)
	p.aborted++
	if err == nil {
		p.aborted = 0
	}
	first.add(backoff(p.aborted, maxAbortedPause), err != nil)
	if first.any {
		p.wakeIn(first.in)
	}
}

// wakeWithin makes the next pass come after d, or sooner.
func (p *pass) wakeWithin(d time.Duration) {
	p.results.Lock()
	defer p.results.Unlock()
	p.due.add(d, true)
}

// fail records a failure of an object.
func (p *pass) fail(ctx context.Context, i *item, err error) {
	p.results.Lock()
	defer p.results.Unlock()
	reason := clip(err.Error(), maxReason)
	p.failures.failed(i.Key, i.Hash(), i.version, reason)
	p.hadTurn(i.Object, reason)
	delete(p.unlabeled, i.Key) // it may be another one by now
	p.stillFailing(ctx, i.Object, i.live, reason)
}

// wasChanged is what is against an object that was changed since a pass has left nothing.
const wasChanged = "it was changed already, and waits until the others had their turn"

// succeeded counts a change of an object, which was its turn, and forgets what was against it.
func (p *pass) succeeded(count *int, key object.Key) {
	p.results.Lock()
	defer p.results.Unlock()
	*count++
	delete(p.failures, key)
	delete(p.absent, key)
	delete(p.lost, key)
	if o := p.want.byKey[key]; o != nil {
		p.hadTurn(o, wasChanged)
	}
}
