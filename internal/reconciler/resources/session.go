package resources

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ironherd/ironherd/internal/reconciler/resources/api"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/mirror"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// errEnded tells that the watches ended in the middle of a pass.
var errEnded = errors.New("the watches have ended")

// inventoryKey is the object that the inventory is reported as.
var inventoryKey = object.Key{Kind: "ConfigMap", Namespace: inventory.Namespace, Name: inventory.Name}

// session is what passes know and remember during one Run. Only one pass at a time uses it.
type session struct {
	a     *Applier
	start chan *mirror.Mirror
	ended chan struct{}

	// kinds are those of the server when it was asked at kindsAt.
	kinds   *api.Kinds
	kindsAt time.Time
	// vanished has, of each kind of which there is a leftover and which the server does not have,
	// since when passes have found that.
	vanished map[schema.GroupKind]time.Time
	mirrors  map[schema.GroupVersionResource]*mirror.Mirror
	// classes has every storage class, whoever made it. Nil unless one of ours is to be the
	// default.
	classes  *mirror.Mirror
	ledger   *ledger
	failures failures
	// turns has, of the objects of manifests that had their turn since a pass has left nothing, what
	// was against them. See budget.
	turns map[object.Key]string
	// asked are objects of manifests of which the server was asked, since then, what has become of
	// their replacement: they are gone, or there was no answer. Unfinished tells that the last pass
	// has left something.
	asked      map[object.Key]bool
	unfinished bool
	repairs    repairs
	// absent has since when each pass has found that an object is no longer in the manifests.
	absent map[object.Key]time.Time
	// lost are the objects that others have deleted, and that are not created again yet.
	lost map[object.Key]bool
	// overrides are those of the last pass.
	overrides []reconciler.Override
	// aborted counts the passes in a row that ended early, and blind those that were made to look at
	// health and could look at nothing. The next of these comes at lookAt.
	aborted, blind int
	lookAt         time.Time
	// checked has, for objects that were up to date when they were looked at, what was looked at.
	checked map[object.Key]checkedVersion
	// foreign are objects that exist and that we have not created, so that we do not try to.
	foreign map[object.Key]bool
	// unlabeled has live objects that do not bear our label, so that no mirror has them, wanted or no
	// longer.
	unlabeled map[object.Key]looked
	// health has the health of what was looked at.
	health map[object.Key]seenHealth
	// deleting is what the last pass that went to its end has found of deletions that take their time.
	deleting []reconciler.Deletion
	// unrecorded is how many objects it has found whose creation by us is no longer known.
	unrecorded int
	// said has, of each object that is not as wanted, what was told of it last.
	said map[object.Key]string
	// told has the failures of no object that an event tells of, and eventUnrecorded if one does.
	told map[string]bool
	// logged has the texts that firstTime was asked for.
	logged map[string]bool

	mu    sync.Mutex
	timer *time.Timer
}

// checkedVersion tells that this version of a live object is as the configuration wants it.
type checkedVersion struct{ version, hash string }

// looked is a live object as it was when the server was asked.
type looked struct {
	live *metav1.PartialObjectMetadata
	at   time.Time
}

func newSession(a *Applier) *session {
	return &session{
		a: a, start: make(chan *mirror.Mirror), ended: make(chan struct{}),
		mirrors: map[schema.GroupVersionResource]*mirror.Mirror{}, ledger: newLedger(a.client.ConfigMaps(inventory.Namespace)),
		failures: failures{}, turns: map[object.Key]string{}, asked: map[object.Key]bool{}, repairs: repairs{}, checked: map[object.Key]checkedVersion{}, foreign: map[object.Key]bool{}, logged: map[string]bool{},
		health: map[object.Key]seenHealth{}, said: map[object.Key]string{}, absent: map[object.Key]time.Time{},
		unlabeled: map[object.Key]looked{}, vanished: map[schema.GroupKind]time.Time{}, lost: map[object.Key]bool{},
	}
}

// follow runs the mirrors that are started, until ctx ends.
func (s *session) follow(ctx context.Context, mirrors *sync.WaitGroup) {
	for {
		select {
		case m := <-s.start:
			mirrors.Go(func() { m.Run(ctx) })
		case <-ctx.Done():
			return
		}
	}
}

// end stops the timer, so that nothing happens after it.
func (s *session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.ended)
	if s.timer != nil {
		s.timer.Stop()
	}
}

// wakeIn signals after d that a pass may find something to do. Only the last call counts.
func (s *session) wakeIn(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.ended:
		return
	default:
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.timer = time.AfterFunc(d, s.a.signal)
}

// mirror returns the mirror of a kind. It starts one if there is none, or if that has ended.
func (s *session) mirror(ctx context.Context, kind api.Kind) (*mirror.Mirror, error) {
	if m := s.mirrors[kind.Resource]; m != nil && !m.Ended() {
		return m, nil
	}
	m, err := s.startMirror(ctx, kind, object.Label+"=true")
	if err == nil {
		s.mirrors[kind.Resource] = m
	}
	return m, err
}

// startMirror starts a mirror of the objects of a kind that a selector selects; an empty one: all.
func (s *session) startMirror(ctx context.Context, kind api.Kind, selector string) (*mirror.Mirror, error) {
	m := mirror.New(s.a.client.Metadata(kind), selector, func(mirror.Name, *metav1.PartialObjectMetadata) { s.a.signal() })
	select {
	case s.start <- m:
		return m, nil
	case <-s.ended:
		return nil, errEnded
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// refreshKinds asks the server which kinds it has.
func (s *session) refreshKinds(ctx context.Context) error {
	kinds, err := s.a.client.Kinds(ctx)
	if err == nil {
		s.kinds, s.kindsAt = kinds, time.Now()
	}
	return err
}

// upToDate reports whether a live object is as wanted.
func (s *session) upToDate(o *object.Object, live *metav1.PartialObjectMetadata) bool {
	f := checkedVersion{version: live.ResourceVersion, hash: o.Hash()}
	if s.checked[o.Key] == f {
		return true
	}
	if !o.UpToDate(live) {
		return false
	}
	s.checked[o.Key] = f
	return true
}

// drifted reports whether a live object was as it is wanted now, and is not any more. Who writes
// the whole object takes from it what we have noted there, so what was seen counts, too.
func (s *session) drifted(i *item) bool {
	return i.LastApplied(i.live) || s.checked[i.Key].hash == i.Hash()
}

// firstTime reports whether this is the first call with the text.
func (s *session) firstTime(text string) bool {
	first := !s.logged[text]
	s.logged[text] = true
	return first
}

// compareKeys is the order in which objects are applied.
func compareKeys(a, b object.Key) int {
	return cmp.Or(cmp.Compare(a.Stage(), b.Stage()), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func nameOf(k object.Key) mirror.Name { return mirror.Name{Namespace: k.Namespace, Name: k.Name} }
