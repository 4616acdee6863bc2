// Package mirror keeps the metadata of the objects of one kind that carry a label as the API server
// has them: what there is at first, then a watch.
//
// It is a loop of its own, and not client-go's reflector, because three things must be known
// exactly: whether the mirror is in step (a pass that finds nothing to do must not rest on a watch
// that is down), which requests are made (none while nothing happens), and how soon it is back
// after the API server was away.
//
//	        first bookmark         watch ends            no answer
//	pending ──────────────► in step ──────────► in step ─────────────► broken ──┐
//	   └────────────────────── no answer ─────────────────────────►      ▲      │ backoff
//	                                                                     └──────┘
//
// A watch that has lasted as long as it was to is followed by one that goes on from where it was.
// After one that was cut off, after the backoff, and if that is too long ago, the mirror begins
// anew: the server may have come back over an etcd that was restored from a snapshot. It accepts
// then a watch that goes on from a version which is yet to come, and tells of nothing until then.
// A server that has sent a list, and then no watch, need not send that list for each attempt; nor
// need one that answers that it is busy, or that it does not let us.
//
// In step means that the server has answered: it has sent everything that there is and the bookmark
// that ends it, or it has accepted a watch that goes on from the last version seen. It may say
// after that that it cannot: then the mirror is not in step until everything was sent anew. A
// server that sends an error instead of that bookmark, or nothing, is asked for a list first from
// then on, until a list fails. Each of these has to come within a bounded time. A watch that has
// ended before it began is none: that is what client-go returns when a server takes connections and
// does not answer.
//
// Of a server that stops answering while a watch stands, only the connection can tell, and that
// takes it most of a minute. Who needs to know sooner asks the server (api.Client.Ready).
//
// A mirror reports an object as gone when the object loses its label: whoever wants the object has
// the same to do then.
package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"slices"
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

func nameOf(o *metav1.PartialObjectMetadata) Name {
	return Name{Namespace: o.Namespace, Name: o.Name}
}

// Mirror is what is known. Safe for concurrent use. What it returns is shared and must not be
// changed.
type Mirror struct {
	reader   Reader
	selector string
	changed  func(Name, *metav1.PartialObjectMetadata)
	// lists tells that the server is to be asked for a list, because it sends no bookmark that ends
	// one. Only Run uses it.
	lists bool

	mu      sync.Mutex
	objects map[Name]*metav1.PartialObjectMetadata
	// seen is the version up to which the server has told everything; empty: none. Only Run writes
	// it.
	seen         string
	state        state
	err          error         // why broken
	stateChanged chan struct{} // closed when state changes
}

type state int

const (
	pending state = iota
	inStep
	broken
	// stale: the server has accepted a watch, and then said that it cannot go on from the version
	// seen. Until it has sent all anew nothing is known of what has changed meanwhile.
	stale
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
// ended. The answer may come from a proxy that has no server just then, in the same words.
func Gone(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) }

// answerFor is how long the server may take to accept a watch, and listFor how long to send all
// that there is.
const (
	answerFor = 10 * time.Second
	listFor   = 30 * time.Second
)

var (
	errNoAnswer = errors.New("the API server does not answer")
	errNoWatch  = errors.New("the API server accepts no watch")
)

// Run keeps the mirror until ctx ends, or until its kind is gone.
func (m *Mirror) Run(ctx context.Context) {
	pause := minPause
	defer func() {
		if ctx.Err() != nil {
			m.setState(broken, context.Cause(ctx)) // whoever waits need not wait longer
		}
	}()
	for ctx.Err() == nil {
		began, from := time.Now(), m.seen
		established, err := m.follow(ctx)
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			m.reached("") // too long ago to go on from
			if established {
				m.setState(stale, nil)
			}
		}
		switch {
		case established && time.Since(began) > minWatch:
			pause = minPause
			continue // whether the server can still be reached is asked before anything is concluded
		case !established:
			if m.seen == from && !apierrors.IsTooManyRequests(err) && !apierrors.IsForbidden(err) {
				m.reached("") // its etcd may be restored meanwhile
			}
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

// follow takes everything anew if there is no version to go on from, and then watches until the
// watch ends. It reports whether a watch was established.
func (m *Mirror) follow(ctx context.Context) (established bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timeout := int64((watchFor + rand.N(watchFor)).Seconds())
	ends := time.Now().Add(time.Duration(timeout) * time.Second)
	options := metav1.ListOptions{LabelSelector: m.selector, AllowWatchBookmarks: true, TimeoutSeconds: &timeout}
	anew := m.seen == ""
	switch {
	case anew && m.lists:
		if err = m.list(ctx); err != nil {
			return false, err
		}
	case anew:
		options.SendInitialEvents, options.ResourceVersionMatch = &anew, metav1.ResourceVersionMatchNotOlderThan
	}
	options.ResourceVersion = m.seen
	overdue := time.AfterFunc(answerFor, func() { cancel(errNoAnswer) })
	w, err := m.reader.Watch(ctx, options)
	// Its URL says how long the watch was to last, which is drawn: a failure that lasts would say
	// something new each time.
	if call, is := errors.AsType[*url.Error](err); is {
		err = call.Err
	}
	if !overdue.Stop() {
		err = errors.Join(errNoAnswer, err) // client-go returns an empty watch, and no error
	}
	if w != nil {
		defer w.Stop()
	}
	if err != nil {
		m.lists = m.lists || anew && (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err))
		return false, fmt.Errorf("watch: %w", err)
	}
	if options.SendInitialEvents != nil {
		err = m.initial(ctx, w)
		// A server that does not know such bookmarks sends none, and one whose etcd is too old for them
		// says so in the stream, as some error. A stream that was cut off tells neither.
		m.lists = err != nil && ctx.Err() == nil && !errors.Is(err, errNoWatch)
	} else {
		err = m.begun(w)
	}
	if err != nil {
		return false, err
	}
	m.setState(inStep, nil)
	for {
		select {
		case <-ctx.Done():
			return true, context.Cause(ctx)
		case event, ok := <-w.ResultChan():
			if !ok {
				if time.Now().Before(ends) { // cut off, and client-go may wait until the server is back
					m.reached("")
				}
				return true, nil
			}
			object, err := objectOf(event)
			if err != nil {
				return true, err
			}
			m.receive(event.Type, object)
		}
	}
}

// list asks for everything.
func (m *Mirror) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listFor)
	defer cancel()
	list, err := m.reader.List(ctx, metav1.ListOptions{LabelSelector: m.selector})
	if err != nil {
		m.lists = false // the other way next time
		return fmt.Errorf("list: %w", err)
	}
	objects := make(map[Name]*metav1.PartialObjectMetadata, len(list.Items))
	for i := range list.Items {
		objects[nameOf(&list.Items[i])] = &list.Items[i]
	}
	m.replace(objects, list.ResourceVersion)
	return nil
}

// initial receives everything that there is, up to the bookmark that ends it.
func (m *Mirror) initial(ctx context.Context, w watch.Interface) error {
	ctx, cancel := context.WithTimeoutCause(ctx, listFor, errNoAnswer)
	defer cancel()
	objects := map[Name]*metav1.PartialObjectMetadata{}
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("watch: %w", context.Cause(ctx))
		case event, ok := <-w.ResultChan():
			if !ok {
				return errNoWatch
			}
			object, err := objectOf(event)
			switch {
			case err != nil:
				return err
			case event.Type == watch.Deleted: // since the server began to send
				delete(objects, nameOf(object))
			case event.Type != watch.Bookmark:
				objects[nameOf(object)] = object
			case object.Annotations[metav1.InitialEventsAnnotationKey] == "true":
				m.replace(objects, object.ResourceVersion)
				return nil
			}
		}
	}
}

// begun returns an error if the watch has ended before it began.
func (m *Mirror) begun(w watch.Interface) error {
	select {
	case event, ok := <-w.ResultChan():
		if !ok {
			return errNoWatch
		}
		object, err := objectOf(event)
		if err != nil {
			return err
		}
		m.receive(event.Type, object)
	default:
	}
	return nil
}

// objectOf returns what an event is about.
func objectOf(event watch.Event) (*metav1.PartialObjectMetadata, error) {
	if event.Type == watch.Error {
		return nil, fmt.Errorf("watch: %w", apierrors.FromObject(event.Object))
	}
	object, ok := event.Object.(*metav1.PartialObjectMetadata)
	if !ok {
		return nil, fmt.Errorf("watch: an event is of %T", event.Object)
	}
	return object, nil
}

// reached keeps the version up to which the server has told everything.
func (m *Mirror) reached(version string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen = version
}

// receive takes one event of the watch.
func (m *Mirror) receive(kind watch.EventType, object *metav1.PartialObjectMetadata) {
	name := nameOf(object)
	m.mu.Lock()
	m.seen = object.ResourceVersion
	have, news := m.objects[name], false
	switch {
	case have != nil && newer(have.ResourceVersion, object.ResourceVersion): // from Put
	case kind == watch.Added, kind == watch.Modified:
		news = have == nil || have.ResourceVersion != object.ResourceVersion
		m.objects[name] = object
	case kind == watch.Deleted:
		news = have != nil
		delete(m.objects, name)
		object = nil
	}
	m.mu.Unlock()
	if news {
		m.changed(name, object)
	}
}

// replace takes everything that was there at a version. What changed is told.
func (m *Mirror) replace(objects map[Name]*metav1.PartialObjectMetadata, version string) {
	m.mu.Lock()
	before := m.objects
	m.objects, m.seen = objects, version
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
	quiet := same || s == stale || s == inStep && m.state == stale // all that has changed is told
	m.state, m.err = s, err
	if !same {
		close(m.stateChanged)
		m.stateChanged = make(chan struct{})
	}
	m.mu.Unlock()
	if !quiet {
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

// Ended reports whether the mirror has ended because its kind is gone. It does not come back.
func (m *Mirror) Ended() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state == broken && Gone(m.err)
}

// Get returns an object, or nil.
func (m *Mirror) Get(name Name) *metav1.PartialObjectMetadata {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.objects[name]
}

// All returns every object.
func (m *Mirror) All() []*metav1.PartialObjectMetadata {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.objects))
}

// Put takes what a request has returned, and reports whether that is news. It is not if the watch
// was faster: what the watch has told already, it does not tell again, so an answer as old as that
// may be of an object that is gone. An answer whose age cannot be known waits for the watch, too,
// and so does every answer while there is no version to go on from.
func (m *Mirror) Put(object *metav1.PartialObjectMetadata) bool {
	name := nameOf(object)
	m.mu.Lock()
	defer m.mu.Unlock()
	have := m.objects[name]
	news := newer(object.ResourceVersion, m.seen) && (have == nil || newer(object.ResourceVersion, have.ResourceVersion))
	if news {
		m.objects[name] = object
	}
	return news
}

// Remove forgets an object that is known to be gone.
func (m *Mirror) Remove(name Name, uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if have := m.objects[name]; have != nil && have.UID == uid {
		delete(m.objects, name)
	}
}

// newer reports whether version a is known to be newer than b. Versions are numbers that grow
// (KEP-5504); of those that are none, nothing is known.
func newer(a, b string) bool {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	return errX == nil && errY == nil && x > y
}
