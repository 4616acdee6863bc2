package resources

import (
	"context"
	"log/slog"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironherd/ironherd/internal/reconciler/resources/api"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// The reasons of our events.
const (
	eventFailed     = "NotAsWanted"
	eventRecreated  = "Recreated"
	eventPruned     = "Pruned"
	eventTakenBack  = "TakenBack"
	eventUnrecorded = "NotRecorded"
)

// mostEvents is how many events a pass sends at most. What more there is to say is in the log, and
// is not told later.
const mostEvents = 50

// tell says in an event on an object what was done with it, or why it is not as wanted. Live is nil
// if there is no such object.
func (p *pass) tell(o *object.Object, live *metav1.PartialObjectMetadata, reason, note string) {
	p.results.Lock()
	defer p.results.Unlock()
	p.tellLocked(o, live, reason, note)
}

func (p *pass) tellLocked(o *object.Object, live *metav1.PartialObjectMetadata, reason, note string) {
	e := api.Event{Key: o.Key, Version: o.Version, Reason: reason, Note: note, Warning: reason == eventFailed || reason == eventUnrecorded}
	if live != nil {
		e.UID = string(live.UID)
	}
	if len(p.events) < mostEvents {
		p.events = append(p.events, e)
	}
}

// news reports whether it was not told yet that an object is not as wanted for a reason, and tells
// it in an event on the object. Gist is what of the reason makes it another one.
func (p *pass) news(o *object.Object, live *metav1.PartialObjectMetadata, gist, reason string) bool {
	said, again := p.said[o.Key]
	if now, more := p.saying[o.Key]; more {
		said, again = now, true
	}
	p.saying[o.Key] = gist
	if again && said == gist {
		return false
	}
	p.tellLocked(o, live, eventFailed, reason)
	return true
}

// rememberSaid keeps what is known to have been told. What a whole pass did not find any more will
// be news when it comes back.
func (p *pass) rememberSaid(whole bool) {
	if whole {
		clear(p.said)
	}
	maps.Copy(p.said, p.saying)
}

// tellFaults says what belongs to no object, such as a file that cannot be read, on the inventory:
// once, until it is no longer so.
func (p *pass) tellFaults(ctx context.Context) {
	on := &object.Object{Key: inventoryKey, Version: "v1"}
	var live *metav1.PartialObjectMetadata
	if m := p.mirrors[api.ConfigMap.Resource]; m != nil {
		live = m.Get(nameOf(inventoryKey))
	}
	told := map[string]bool{}
	for _, f := range p.report.Failures {
		if text := f.Object + ": " + f.Reason; p.unowned(f.Object) {
			told[text] = true
			if !p.told[text] {
				p.tell(on, live, eventFailed, text)
				p.a.log.WarnContext(ctx, "not everything can be as wanted", slog.String("object", f.Object), slog.String("err", f.Reason))
			}
		}
	}
	if n := p.report.Unrecorded; n > 0 { // told once, however many there are
		told[eventUnrecorded] = true
		if !p.told[eventUnrecorded] {
			p.tell(on, live, eventUnrecorded, WhyUnrecorded(n))
			p.a.log.WarnContext(ctx, "wanted objects that bear our mark are not in the inventory, and will not be deleted", slog.Int("objects", n))
		}
	}
	p.told = told
}

// unowned reports whether a failure is of no object.
func (p *pass) unowned(of string) bool {
	for _, f := range p.want.faults {
		if f.Object == of {
			return true
		}
	}
	return p.ownerless[of] || of == noLongerWanted || of == inventoryKey.String()
}

// eventsFor is how long a pass sends events.
const eventsFor = 5 * time.Second

// sendEvents sends what there is to tell. An event that cannot be written, or for which no time is
// left, is dropped: what it says is in the log and in the report, too.
func (p *pass) sendEvents(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, eventsFor)
	defer cancel()
	for _, e := range p.events {
		if ctx.Err() != nil {
			return
		}
		if err := p.a.client.Event(ctx, e); err != nil {
			p.a.log.DebugContext(ctx, "an event cannot be written", slog.String("object", e.Key.String()), slog.Any("err", err))
			if !answered(err) {
				return
			}
		}
	}
}
