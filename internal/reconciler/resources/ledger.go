package resources

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

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
	version inventory.Version
	// known tells that stored and version are what the server has.
	known  bool
	faults error
}

func newLedger(maps inventory.ConfigMaps) *ledger {
	return &ledger{maps: maps, current: inventory.New(), stored: inventory.New()}
}

// refresh reads the stored inventory, unless its version is known and is the one that the watch has
// seen.
func (l *ledger) refresh(ctx context.Context, seen *metav1.PartialObjectMetadata) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var version inventory.Version
	if seen != nil {
		version = inventory.Version(seen.ResourceVersion)
	}
	if l.known && l.version == version {
		return nil
	}
	l.known = false
	stored, version, faults, err := inventory.Read(ctx, l.maps)
	if err != nil {
		return err
	}
	current := stored.Clone()
	for key, entry := range l.current.Entries { // our entries stay true, whoever removed them
		if _, there := current.Entries[key]; !there {
			current.Entries[key] = entry
		}
	}
	l.current, l.stored, l.version, l.faults, l.known = current, stored, version, faults, true
	return nil
}

// entry returns what is known of an object.
func (l *ledger) entry(key object.Key) inventory.Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current.Entries[key]
}

// intend records that an object is about to be created. An entry that has a mark keeps it, because
// the request that carries the mark may have been sent.
func (l *ledger) intend(key object.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entry := l.current.Entries[key]
	if entry.Mark == "" {
		entry.Mark, entry.At = rand.Text(), time.Now()
		l.current.Entries[key] = entry
	}
}

// created records the UID of an object that we have created.
func (l *ledger) created(key object.Key, uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current.Entries[key] = inventory.Entry{UID: uid}
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

// write stores the inventory if it has changed. It returns the metadata of what it stored, or nil
// if nothing had changed.
func (l *ledger) write(ctx context.Context) (*metav1.PartialObjectMetadata, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.known {
		return nil, errUnknown
	}
	if l.current.Equal(l.stored) {
		return nil, nil
	}
	l.known = false
	version, err := inventory.Write(ctx, l.maps, l.current, l.version)
	if err != nil {
		return nil, err
	}
	l.stored, l.version, l.known = l.current.Clone(), version, true
	stored := &metav1.PartialObjectMetadata{}
	stored.Namespace, stored.Name, stored.ResourceVersion = inventory.Namespace, inventory.Name, string(version)
	return stored, nil
}
