package resources

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// errUnknown tells that the stored inventory is not known, so that nothing may rely on it.
var errUnknown = errors.New("what the inventory holds is not known")

// ledger is the inventory as it is stored, and as it is to be stored next. Safe for concurrent use.
type ledger struct {
	maps inventory.ConfigMaps

	mu      sync.Mutex
	current *inventory.Inventory
	stored  *inventory.Inventory
	parts   inventory.Stored
	// known tells that stored and parts are what the server has.
	known  bool
	faults error
	// unstored is why the inventory could not be stored, if it is not known because of that.
	unstored error
}

func newLedger(maps inventory.ConfigMaps) *ledger {
	return &ledger{maps: maps, current: inventory.New(), stored: inventory.New()}
}

// refresh reads the stored inventory, unless it is known and its parts are those that the watch has
// seen.
func (l *ledger) refresh(ctx context.Context, seen []string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known && l.parts.Is(seen) {
		return nil
	}
	l.known = false
	stored, parts, faults, err := inventory.Read(ctx, l.maps, len(seen))
	if err != nil {
		return err
	}
	current := stored.Clone()
	for key, entry := range l.current.Entries { // our entries stay true, whoever removed them
		if _, there := current.Entries[key]; !there {
			current.Entries[key] = entry
		}
	}
	l.current, l.stored, l.parts, l.faults, l.known, l.unstored = current, stored, parts, faults, true, nil
	return nil
}

// entry returns what is known of an object.
func (l *ledger) entry(key object.Key) inventory.Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current.Entries[key]
}

// intend records that an object is about to be created, and who needs it. An entry that has a mark
// keeps it, because the request that carries the mark may have been sent, and tells the time of the
// next such request once the time that it tells is long ago. It keeps the UID of one that is about
// to be deleted for that, and drops it if lost tells that we know it is gone. Withdraw takes the
// record back; it may be called only if nothing was sent.
func (l *ledger) intend(key object.Key, need object.Need, lost bool) (withdraw func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, had := l.current.Entries[key]
	entry := before
	if lost {
		entry.UID, entry.Replacing = "", false
	}
	if before.Mark != "" {
		if entry.Need = need; time.Since(entry.At) > inventory.Settle/2 {
			entry.At = time.Now()
		}
		l.current.Entries[key] = entry
		return func() {}
	}
	entry.Mark, entry.At, entry.Need = rand.Text(), time.Now(), need
	l.current.Entries[key] = entry
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case l.current.Entries[key] != entry:
		case had:
			l.current.Entries[key] = before
		default:
			delete(l.current.Entries, key)
		}
	}
}

// replace records that an object is about to be deleted and created again. Withdraw takes the
// record back; it may be called only if the object is there still.
func (l *ledger) replace(key object.Key, need object.Need) (withdraw func()) {
	used := l.entry(key).Mark != ""
	back := l.intend(key, need, false)
	l.edit(key, func(entry *inventory.Entry) {
		if entry.Replacing = true; used { // how long the request may take is counted from now on
			entry.At = time.Now()
		}
	})
	return func() {
		l.notReplaced(key)
		back()
	}
}

// notReplaced takes back the word that an object is being replaced.
func (l *ledger) notReplaced(key object.Key) {
	l.edit(key, func(entry *inventory.Entry) { entry.Replacing = false })
}

// gone removes the entry of an object that is gone, and that bore a mark; empty: none is known. It
// keeps another mark, of the entry, while the request that carries it may be under way.
func (l *ledger) gone(key object.Key, bore string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entry := l.current.Entries[key]
	if entry.Mark == "" || entry.Mark == bore || time.Since(entry.At) >= inventory.Settle {
		delete(l.current.Entries, key)
		return
	}
	entry.UID, entry.Replacing = "", false
	l.current.Entries[key] = entry
}

// edit changes the entry of an object, if it has one.
func (l *ledger) edit(key object.Key, change func(*inventory.Entry)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if entry, there := l.current.Entries[key]; there {
		change(&entry)
		l.current.Entries[key] = entry
	}
}

// created records the UID of an object that we have created, and who needs it.
func (l *ledger) created(key object.Key, uid string, need object.Need) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current.Entries[key] = inventory.Entry{UID: uid, Need: need}
}

// needs records who needs an object that has an entry.
func (l *ledger) needs(key object.Key, need object.Need) {
	l.edit(key, func(entry *inventory.Entry) { entry.Need = need })
}

// forget removes the entry of an object.
func (l *ledger) forget(key object.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.current.Entries, key)
}

// entries returns a copy of all entries.
func (l *ledger) entries() map[object.Key]inventory.Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current.Clone().Entries
}

// write stores the inventory if it has changed. It returns the metadata of the parts that it
// stored.
func (l *ledger) write(ctx context.Context) ([]*metav1.PartialObjectMetadata, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.known && l.unstored != nil:
		return nil, fmt.Errorf("%w: %w", errUnknown, l.unstored)
	case !l.known:
		return nil, errUnknown
	}
	if l.current.Equal(l.stored) {
		return nil, nil
	}
	l.known = false
	parts, written, err := inventory.Write(ctx, l.maps, l.current, l.parts)
	if err != nil {
		l.known = errors.Is(err, inventory.ErrFull)
		l.unstored = err
		return nil, err
	}
	l.stored, l.parts, l.known = l.current.Clone(), parts, true
	var stored []*metav1.PartialObjectMetadata
	for _, n := range written {
		part := &metav1.PartialObjectMetadata{}
		part.Namespace, part.Name, part.ResourceVersion = inventory.Namespace, inventory.PartName(n), parts.Version(n)
		stored = append(stored, part)
	}
	return stored, nil
}

// notStored reports whether an error says that the inventory is too large, or that the server did
// not store it: it does not want it as it is, or cannot take it now (a webhook that nobody serves,
// say). Whether it did store it all the same is read before it is written again. After any other
// error somebody else may have written it, or the server knows us no longer, or is away.
func notStored(err error) bool {
	switch {
	case err == nil, apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err), apierrors.IsUnauthorized(err):
		return false
	}
	return answered(err)
}

// adopt reports whether we have created a live object. It records its UID if it bears the mark of
// its entry, and who needs it if that has changed.
func (p *pass) adopt(o *object.Object, live *metav1.PartialObjectMetadata) (ours bool) {
	entry := p.ledger.entry(o.Key)
	ours = entry.Ours(string(live.UID), live.Annotations[object.Mark])
	if ours && entry.Mark != "" && entry.Mark == live.Annotations[object.Mark] {
		p.ledger.created(o.Key, string(live.UID), o.Need)
	} else if ours && entry.Need != o.Need {
		p.ledger.needs(o.Key, o.Need)
	}
	return ours
}

// enoughTries is how often in a row an object must have failed before it counts as one that cannot
// be changed: for about a minute. A webhook that restarts is back by then.
const enoughTries = 10

// undoneFor returns how many tries what stands against an object has outlasted. What has failed
// earlier, and waits for something now, is not tried at all, however often it has failed; nor is
// what is refused. What others change again and again is: the repairs that had to wait count.
func (p *pass) undoneFor(key object.Key) int {
	switch why := p.why[key]; {
	case why == "" || why == wasChanged || p.left[key]: // as wanted, or the next pass sees to it
		return 0
	case why == p.failures[key].reason && p.want.dependencies.never[key] == "":
		return p.failures[key].attempts
	case why == changedAgain:
		return p.repairs[key].n - freeRepairs
	}
	return enoughTries
}

// letGo forgets that we have created what its manifest says is never deleted, where the live object
// does not say so: the manifest may be gone tomorrow, and another release may lead then. That is so
// of an object that is only created, because no pass puts the annotation there, and of one that
// cannot be changed now: there is a conflict, it is paused, or it waits for what it depends on,
// say. What is left to the next pass, or is being replaced, is not forgotten.
func (p *pass) letGo(ctx context.Context) {
	for key, o := range p.want.byKey {
		undone := p.undoneFor(key) >= enoughTries
		if p.plan != nil || !o.NeverPruned() || !undone && !o.CreateOnly() {
			continue
		}
		live, entry := p.liveOf(ctx, o), p.ledger.entry(key)
		if live == nil || live.DeletionTimestamp != nil || live.Annotations[object.Prune] == object.NeverPrune ||
			entry.Replacing || !entry.Ours(string(live.UID), live.Annotations[object.Mark]) {
			continue
		}
		p.ledger.forget(key)
		p.a.log.InfoContext(ctx, "never deleted from now on, and no longer in the inventory: the manifest says so, and the object does not",
			slog.String("object", key.String()))
	}
}

// liveOf returns the live object of one that is wanted, as far as mirrors have it. One that is
// refused because of what it depends on was not located.
func (p *pass) liveOf(ctx context.Context, o *object.Object) *metav1.PartialObjectMetadata {
	if i := p.located[o.Key]; i != nil {
		return p.now(i)
	}
	if p.kinds == nil {
		return nil
	}
	kind, err := p.kinds.Any(o.Key)
	if err != nil {
		return nil
	}
	if m := p.mirrors[kind.Resource]; m != nil && m.Ended() && p.kindsAt.Before(p.begun) {
		p.kinds = nil // the server had the kind before: the next pass asks again
		return nil
	}
	m, err := p.mirror(ctx, kind)
	if err != nil {
		return nil
	}
	return p.now(&item{Object: o, kind: kind, mirror: m})
}
