package resources

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironherd/ironherd/internal/reconciler/resources/api"
	"github.com/ironherd/ironherd/internal/reconciler/resources/health"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// The mirrors have the metadata of objects and not their status. So a pass looks at an object anew,
// with one request, when its version has changed, and remembers what it saw.
const (
	// lookFor is how long a pass waits for one object that it looks at, and looksFor how long it
	// looks at what nobody waits for. What is left is for the next pass.
	lookFor  = 3 * time.Second
	looksFor = 2 * time.Second
	// maxLooks is how many objects a pass looks at that nobody waits for.
	maxLooks = 500
	// lookAgainIn is when the next pass looks at what is left. While no look succeeds it doubles, up
	// to maxPause.
	lookAgainIn = time.Second
)

// notLooked is the health of an object that nobody has looked at yet.
const notLooked = "it was not looked at yet"

// looks is what a pass could not look at.
type looks struct {
	// lookAgain tells that the health of something is left to the next pass.
	lookAgain atomic.Bool
	// sawHealth tells that a look has succeeded.
	sawHealth atomic.Bool
	// unlooked are the looks of this pass that failed.
	unlooked map[object.Key]health.Verdict
}

// seenHealth is the health that a version of a live object had.
type seenHealth struct {
	version, hash string
	health.Verdict
	// tried is when it was looked at, or was to be, last.
	tried time.Time
}

// hasStatus reports whether the health of an object cannot be told from its metadata. In the groups
// of Kubernetes itself it is known by the kind; what others define may keep its status anywhere.
func hasStatus(o *object.Object, kind api.Kind) bool {
	own := !strings.Contains(o.Group, ".") || strings.HasSuffix(o.Group, ".k8s.io")
	return kind.HasStatus || !own || o.HealthyWhen() != ""
}

// healthKnown returns what is known of the health of a live object; false: it has to be looked at.
func (p *pass) healthKnown(i *item, live *metav1.PartialObjectMetadata) (health.Verdict, bool) {
	if live.DeletionTimestamp != nil {
		return health.Verdict{Reason: "it is being deleted"}, true
	}
	if !hasStatus(i.Object, i.kind) {
		return health.Verdict{OK: true}, true
	}
	p.results.Lock()
	defer p.results.Unlock()
	seen := p.health[i.Key]
	return seen.Verdict, seen.version == live.ResourceVersion && seen.hash == i.Hash()
}

// lookedAt is healthKnown, or what a look of this pass that failed has to say: what cannot be
// looked at is not asked for again in the same pass, because many may depend on it.
func (p *pass) lookedAt(i *item, live *metav1.PartialObjectMetadata) (health.Verdict, bool) {
	if v, known := p.healthKnown(i, live); known {
		return v, true
	}
	p.results.Lock()
	defer p.results.Unlock()
	v, failed := p.unlooked[i.Key]
	return v, failed
}

// look returns the health of a live object.
func (p *pass) look(ctx context.Context, i *item, live *metav1.PartialObjectMetadata) health.Verdict {
	if v, known := p.lookedAt(i, live); known {
		return v
	}
	bounded, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	whole, err := p.a.client.GetWhole(bounded, i.kind, i.Key)
	if err != nil {
		p.lookAgain.Store(true)
		failed := health.Verdict{Reason: "it cannot be looked at: " + err.Error()}
		p.results.Lock()
		defer p.results.Unlock()
		p.unlooked[i.Key] = failed
		seen := p.health[i.Key]
		seen.tried = time.Now()
		p.health[i.Key] = seen
		return failed
	}
	p.sawHealth.Store(true)
	v := p.a.judge.Ask(bounded, whole, i.HealthyWhen())
	p.results.Lock()
	defer p.results.Unlock()
	p.health[i.Key] = seenHealth{version: whole.GetResourceVersion(), hash: i.Hash(), Verdict: v, tried: time.Now()}
	return v
}

// lookAtAll looks at what has changed since the last pass. Nothing depends on what it finds, so it
// takes a bounded time and fails nothing. What was not looked at for the longest time comes first.
func (p *pass) lookAtAll(ctx context.Context) {
	for key := range p.health {
		if p.located[key] == nil {
			delete(p.health, key)
		}
	}
	var news []*item
	for _, i := range p.located {
		if live := p.now(i); live != nil {
			if _, known := p.healthKnown(i, live); !known {
				news = append(news, i)
			}
		}
	}
	slices.SortFunc(news, func(a, b *item) int {
		return cmp.Or(p.health[a.Key].tried.Compare(p.health[b.Key].tried), compareKeys(a.Key, b.Key))
	})
	if len(news) > maxLooks {
		news = news[:maxLooks]
		p.lookAgain.Store(true)
	}
	bounded, cancel := context.WithTimeout(ctx, looksFor)
	defer cancel()
	if err := each(bounded, news, func(ctx context.Context, i *item) error {
		if live := p.now(i); live != nil {
			p.look(ctx, i, live)
		}
		return ctx.Err()
	}); err != nil {
		p.lookAgain.Store(true)
	}
}

// standings returns how each wanted object stands after a pass.
func (p *pass) standings() []standing {
	all := make([]standing, 0, len(p.want.byKey))
	for key, o := range p.want.byKey {
		s := standing{Key: key, release: o.Need != object.Nobody, unapplied: p.why[key]}
		i := p.located[key]
		switch {
		case i != nil:
			if live := p.now(i); live != nil {
				v, known := p.healthKnown(i, live)
				s.healthy, s.looked, s.unhealthy = known && v.OK, known, v.Reason
			}
		case s.unapplied == "":
			s.unapplied = "its kind cannot be followed"
		}
		if s.looked && !s.healthy {
			p.report.Unhealthy++
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b standing) int { return compareKeys(a.Key, b.Key) })
	return all
}

// remember keeps how everything stands, for Publish.
func (p *pass) remember(ctx context.Context) {
	all, seen := p.standings(), ""
	if m := p.mirrors[api.ConfigMap.Resource].Get(nameOf(summaryKey)); m != nil {
		seen = m.ResourceVersion
	}
	p.deleting, p.unrecorded = p.deletions(ctx), p.countUnrecorded()
	p.a.mu.Lock()
	defer p.a.mu.Unlock()
	p.a.standings, p.a.deleting, p.a.summarySeen = all, p.deleting, seen
}
