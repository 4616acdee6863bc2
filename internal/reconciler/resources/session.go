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
)

// errEnded: the watches were given up in the middle of a pass.
var errEnded = errors.New("the watches have ended")

// inventoryKey is the one object that is kept otherwise.
var inventoryKey = object.Key{Kind: "ConfigMap", Namespace: inventory.Namespace, Name: inventory.Name}

// session is what is known during one Run. Only one pass at a time touches it.
type session struct {
	a     *Applier
	start chan *mirror.Mirror
	ended chan struct{}

	kinds   *api.Kinds
	mirrors map[schema.GroupVersionResource]*mirror.Mirror
	ledger  *ledger
	tries   tries
	repairs repairs
	aborted int // passes in a row that ended early
	// held remembers which versions have been found to be as wanted.
	held map[object.Key]found
	// foreign are objects that are there and were not made by us, so that it is not tried to make
	// them.
	foreign map[object.Key]bool
	// told is what has been logged once.
	told map[string]bool

	mu    sync.Mutex
	timer *time.Timer
}

// found: this version of the object holds this configuration.
type found struct{ version, hash string }

func newSession(a *Applier) *session {
	return &session{
		a: a, start: make(chan *mirror.Mirror), ended: make(chan struct{}),
		mirrors: map[schema.GroupVersionResource]*mirror.Mirror{}, ledger: newLedger(a.client.ConfigMaps(inventory.Namespace)),
		tries: tries{}, repairs: repairs{}, held: map[object.Key]found{}, foreign: map[object.Key]bool{}, told: map[string]bool{},
	}
}

// end stops what would still happen.
func (s *session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.ended)
	if s.timer != nil {
		s.timer.Stop()
	}
}

// wakeIn has a pass made after a while.
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

// mirror returns the mirror of a kind, which is started if it does not run yet.
func (s *session) mirror(ctx context.Context, kind api.Kind) (*mirror.Mirror, error) {
	if m := s.mirrors[kind.Resource]; m != nil {
		return m, nil
	}
	m := mirror.New(s.a.client.Metadata(kind), object.Label+"=true", func(mirror.Name, *metav1.PartialObjectMetadata) { s.a.signal() })
	select {
	case s.start <- m:
	case <-s.ended:
		return nil, errEnded
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	s.mirrors[kind.Resource] = m
	return m, nil
}

// refreshKinds asks which kinds there are.
func (s *session) refreshKinds(ctx context.Context) error {
	kinds, err := s.a.client.Kinds(ctx)
	if err == nil {
		s.kinds = kinds
	}
	return err
}

// holds reports whether a live object is as wanted.
func (s *session) holds(o *object.Object, live *metav1.PartialObjectMetadata) bool {
	f := found{version: live.ResourceVersion, hash: o.Hash()}
	if s.held[o.Key] == f {
		return true
	}
	if !o.Held(live) {
		return false
	}
	s.held[o.Key] = f
	return true
}

// once reports whether something is said for the first time.
func (s *session) once(text string) bool {
	first := !s.told[text]
	s.told[text] = true
	return first
}

// compareKeys is the order in which objects are applied.
func compareKeys(a, b object.Key) int {
	return cmp.Or(cmp.Compare(a.Stage(), b.Stage()), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func nameOf(k object.Key) mirror.Name { return mirror.Name{Namespace: k.Namespace, Name: k.Name} }
