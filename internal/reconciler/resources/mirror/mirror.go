// Package mirror keeps the metadata of the objects of one kind that carry a label as the API server
// has them: a list, then a watch.
//
// It is a loop of its own, and not client-go's reflector, because three things must be known
// exactly: whether the mirror is in step (a pass that finds nothing to do must not rest on a watch
// that is down), which requests are made (none while nothing happens), and how soon it is back
// after the API server was away.
//
//	             list              watch ends             no answer
//	pending ───────────► in step ───────────► in step ───────────────► broken ──┐
//	   └───────────────────── no answer ────────────────────────────►     ▲     │ backoff
//	                                                                      └─────┘
//
// After the backoff the mirror watches on from where it was, or lists anew if that is too long ago.
//
// In step means that a watch is established, and goes on from the last version seen. A mirror
// reports an object as gone when the object loses its label: whoever wants the object has the same
// to do then.
package mirror

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// The pause between attempts grows from the first constant to the second.
const (
	minPause = 50 * time.Millisecond
	maxPause = 2 * time.Second
)

// A watch lasts between one and two of these; the server ends it, and a new one goes on.
const watchFor = 5 * time.Minute

// minWatch is how long a watch must have lasted to be followed by the next one at once.
const minWatch = time.Second

// Reader lists and watches; *metadata.Client does, for one resource.
type Reader interface {
	List(ctx context.Context, opts metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

// Name is an object's within its kind.
type Name = types.NamespacedName

// Mirror is what is known. Safe for concurrent use. What it returns is shared and must not be
// changed.
type Mirror struct {
	reader   Reader
	selector string
	changed  func(Name, *metav1.PartialObjectMetadata)

	mu           sync.Mutex
	objects      map[Name]*metav1.PartialObjectMetadata
	state        state
	err          error         // why broken
	stateChanged chan struct{} // closed when state changes
}

type state int

const (
	pending state = iota
	inStep
	broken
)

// New is a mirror of what the reader returns for a label selector. The function is called with each
// object that has changed (nil: it is gone), and with an empty name when the mirror comes into step
// or breaks; it must not wait.
func New(reader Reader, selector string, changed func(Name, *metav1.PartialObjectMetadata)) *Mirror {
	return &Mirror{
		reader: reader, selector: selector, changed: changed,
		objects: map[Name]*metav1.PartialObjectMetadata{}, stateChanged: make(chan struct{}),
	}
}

// Gone reports whether an error of Await says that the kind is no longer served. Such a mirror has
// ended.
func Gone(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) }

// listFor is how long a list may take.
const listFor = 30 * time.Second

// Run keeps the mirror until ctx ends, or until its kind is gone.
func (m *Mirror) Run(ctx context.Context) {
	version, pause := "", minPause
	defer func() {
		if ctx.Err() != nil {
			m.setState(broken, context.Cause(ctx)) // whoever waits need not wait longer
		}
	}()
	for ctx.Err() == nil {
		began := time.Now()
		established, err := m.follow(ctx, &version)
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			version = "" // too long ago to go on from
		}
		switch {
		case established && time.Since(began) > minWatch:
			pause = minPause
			continue // whether the server can still be reached is asked before anything is concluded
		case !established:
			m.setState(broken, err)
			if Gone(err) {
				return
			}
		}
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		pause = min(2*pause, maxPause)
	}
}

// follow lists if there is no version to go on from, and then watches until the watch ends. It
// reports whether a watch was established.
func (m *Mirror) follow(ctx context.Context, version *string) (established bool, err error) {
	if *version == "" {
		listing, cancel := context.WithTimeout(ctx, listFor)
		list, err := m.reader.List(listing, metav1.ListOptions{LabelSelector: m.selector})
		cancel()
		if err != nil {
			return false, fmt.Errorf("list: %w", err)
		}
		m.replace(list.Items)
		*version = list.ResourceVersion
	}
	timeout := int64((watchFor + rand.N(watchFor)).Seconds())
	w, err := m.reader.Watch(ctx, metav1.ListOptions{
		LabelSelector: m.selector, ResourceVersion: *version, AllowWatchBookmarks: true, TimeoutSeconds: &timeout,
	})
	if err != nil {
		return false, fmt.Errorf("watch: %w", err)
	}
	defer w.Stop()
	m.setState(inStep, nil)
	for {
		select {
		case <-ctx.Done():
			return true, context.Cause(ctx)
		case event, ok := <-w.ResultChan():
			if !ok {
				return true, nil
			}
			if event.Type == watch.Error {
				return true, fmt.Errorf("watch: %w", apierrors.FromObject(event.Object))
			}
			object, ok := event.Object.(*metav1.PartialObjectMetadata)
			if !ok {
				return true, fmt.Errorf("watch: an event is of %T", event.Object)
			}
			m.receive(event.Type, object)
			*version = object.ResourceVersion
		}
	}
}

// receive takes one event of the watch.
func (m *Mirror) receive(kind watch.EventType, object *metav1.PartialObjectMetadata) {
	name := Name{Namespace: object.Namespace, Name: object.Name}
	switch kind {
	case watch.Added, watch.Modified:
		if m.Put(object) {
			m.changed(name, object)
		}
	case watch.Deleted:
		m.mu.Lock()
		if have := m.objects[name]; have == nil || newer(have, object) {
			m.mu.Unlock()
			return
		}
		delete(m.objects, name)
		m.mu.Unlock()
		m.changed(name, nil)
	}
}

// replace takes a list: everything that is there. What changed is told.
func (m *Mirror) replace(items []metav1.PartialObjectMetadata) {
	objects := make(map[Name]*metav1.PartialObjectMetadata, len(items))
	for i := range items {
		objects[Name{Namespace: items[i].Namespace, Name: items[i].Name}] = &items[i]
	}
	m.mu.Lock()
	before := m.objects
	m.objects = objects
	m.mu.Unlock()
	for name, object := range objects {
		if had := before[name]; had == nil || had.ResourceVersion != object.ResourceVersion {
			m.changed(name, object)
		}
	}
	for name := range before {
		if objects[name] == nil {
			m.changed(name, nil)
		}
	}
}

// setState changes the state.
func (m *Mirror) setState(s state, err error) {
	m.mu.Lock()
	same := m.state == s
	m.state, m.err = s, err
	if !same {
		close(m.stateChanged)
		m.stateChanged = make(chan struct{})
	}
	m.mu.Unlock()
	if !same {
		m.changed(Name{}, nil)
	}
}

// Await returns nil when the mirror is in step, and why not as soon as that is known.
func (m *Mirror) Await(ctx context.Context) error {
	for {
		m.mu.Lock()
		s, err, stateChanged := m.state, m.err, m.stateChanged
		m.mu.Unlock()
		switch s {
		case inStep:
			return nil
		case broken:
			return err
		}
		select {
		case <-stateChanged:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Get returns an object, or nil.
func (m *Mirror) Get(name Name) *metav1.PartialObjectMetadata {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.objects[name]
}

// Put takes what a request has returned, and reports whether that is news: the watch may have been
// faster.
func (m *Mirror) Put(object *metav1.PartialObjectMetadata) bool {
	name := Name{Namespace: object.Namespace, Name: object.Name}
	m.mu.Lock()
	defer m.mu.Unlock()
	if have := m.objects[name]; have != nil && (newer(have, object) || have.ResourceVersion == object.ResourceVersion) {
		return false
	}
	m.objects[name] = object
	return true
}

// Remove forgets an object that is known to be gone.
func (m *Mirror) Remove(name Name, uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if have := m.objects[name]; have != nil && have.UID == uid {
		delete(m.objects, name)
	}
}

// newer reports whether a is known to be newer than b. Versions are numbers that grow (KEP-5504);
// of a server whose are not, whatever came last counts.
func newer(a, b *metav1.PartialObjectMetadata) bool {
	x, errX := strconv.ParseUint(a.ResourceVersion, 10, 64)
	y, errY := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return errX == nil && errY == nil && x > y
}
