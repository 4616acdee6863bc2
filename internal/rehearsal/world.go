package rehearsal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/fnv"
	"math/rand/v2"
	"regexp"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/shepherd/janitor"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/prober"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/recoverer"
	"github.com/ironherd/ironherd/internal/shepherd/updater"
)

// Setup is what the controllers are configured with.
type Setup struct {
	Policy       fleet.Policy
	SessionLease time.Duration
	Loops        Loops
	Initializer  initializer.Config
	Recoverer    recoverer.Config
	Operations   operations.Config
	Prober       prober.Config
	Janitor      janitor.Config
	Providers    []Provider
	// Image is what is installed where the plan asks for an install, and the provider's configuration
	// for none.
	Image fleet.Image
	// SeenUp is how its systems are seen to have come up.
	SeenUp fleet.SeenUp
}

// install is what is asked for where no provider's configuration says what.
func (s Setup) install(actor string) *fleet.InstallRequest {
	return &fleet.InstallRequest{Actor: actor, Image: s.Image, RootDisk: fleet.DiskSelector{Erase: true}, SeenUp: s.SeenUp}
}

// Loops says how eagerly each loop works.
type Loops struct {
	Provisioner, Initializer, Updater, Recoverer, Operations, Prober shepherd.Config
}

// Provider is one provider that is simulated.
type Provider struct {
	Name fleet.ProviderName
	// List: its machines are the hosts of a list, which has no levers.
	List        bool
	Provisioner provisioner.Config
	Updater     updater.Config
	// Limits are those of its calls: Spacing and InFlight count, and zero is no limit.
	Limits provider.Limits
	// PageSize is how many rows a page of a list has, as that of the machines, and that of the
	// capacity; 0: a list is one call.
	PageSize int
	// Account is what the calls count against, with those of others that have the same; empty: they
	// count alone.
	Account string
}

// world is everything of one rehearsal.
type world struct {
	*schedule
	ctx   context.Context //nolint:containedctx // it lasts as long as the rehearsal
	plan  Plan
	setup Setup
	began time.Time

	engine bmdb.Engine
	// db is the database as nobody's: for people's requests, and to look.
	db          *bmdb.DB
	providers   []provided
	pacers      map[string]*provider.Pacer
	controllers []*controller
	watch       *watch

	// wanted are the machines on which an install may be wanted, and mayBeOff those whose install may
	// have been called off.
	wanted, mayBeOff map[fleet.MachineID]bool

	active  []Event
	randoms map[string]*rand.Rand
	names   map[string]string

	digest hash.Hash
	// lines are the last lines of the trace, or all.
	lines    []string
	keepAll  bool
	timeline []Moment

	// settled is since when nothing was left to do, unsettled what was, and states are those that were
	// seen last, as is how many installed machines do not answer that nobody watches.
	settled   time.Duration
	unsettled string
	states    map[fleet.State]int
	unwatched int
	// quiet is since when nothing is left to do, as far as states are followed; zero: something is.
	quiet time.Time
	// refusedAt is a provider on whose machine an install was refused for what the disk holds.
	refusedAt fleet.ProviderName
	// shown is what the timeline said last of the states.
	shown string
	// stopped is why recovery is stopped, as the timeline said last; empty: it is not.
	stopped fleet.StopCause
}

// Moment is something that a person wants to know of.
type Moment struct {
	At   time.Duration
	What string
	// Times is how often it happened within a minute.
	Times int
}

// random is the stream of chance of one kind of question: an answer to one does not change those
// to others.
func (w *world) random(question string) *rand.Rand {
	r := w.randoms[question]
	if r == nil {
		h := fnv.New64a()
		_, _ = h.Write([]byte(question)) // it never fails
		r = rand.New(rand.NewPCG(w.plan.Seed, h.Sum64()))
		w.randoms[question] = r
	}
	return r
}

func (w *world) chance(question string, percent int) bool {
	return w.random(question).IntN(100) < percent
}

// between draws a time from a range.
func (w *world) between(question string, from, to time.Duration) time.Duration {
	if to <= from {
		return from
	}
	return from + time.Duration(w.random(question).Int64N(int64(to-from)))
}

// on reports whether a fault lasts.
func (w *world) on(what What) bool {
	_, on := w.fault(what)
	return on
}

func (w *world) fault(what What) (Event, bool) {
	for _, e := range w.active {
		if e.What == what {
			return e, true
		}
	}
	return Event{}, false
}

// hits reports whether a fault that hits a share of something hits this.
func (w *world) hits(what What, question string) bool {
	e, on := w.fault(what)
	return on && w.chance(string(what)+" "+question, e.Share)
}

// hearable is how long an agent that runs since then could have been heard: since nothing kept all
// agents from the control planes. With a listener that is down, the control plane says so itself.
func (w *world) hearable(since time.Time) time.Duration {
	heard := w.now.Sub(since)
	for _, e := range w.plan.Events {
		if e.What == AgentsCutOff && w.elapsed() >= e.At {
			ends := min(e.At+e.For, w.plan.Length) // see calm
			heard = min(heard, max(w.elapsed()-ends, 0))
		}
	}
	return heard
}

// elapsed is the time since the beginning.
func (w *world) elapsed() time.Duration { return w.now.Sub(w.began) }

// keptLines is how many lines of the trace are kept at least.
const keptLines = 400

// trace adds a line to the trace.
func (w *world) trace(format string, args ...any) {
	line := fmt.Sprintf("%.6f %s", w.elapsed().Seconds(), fmt.Sprintf(format, args...))
	_, _ = w.digest.Write([]byte(line + "\n")) // it never fails
	if !w.keepAll && len(w.lines) >= 2*keptLines {
		w.lines = append(w.lines[:0], w.lines[len(w.lines)-keptLines:]...)
	}
	w.lines = append(w.lines, line)
}

// note adds to the timeline, or counts what is there from the last minute.
func (w *world) note(format string, args ...any) {
	m := Moment{At: w.elapsed(), What: fmt.Sprintf(format, args...), Times: 1}
	for i := len(w.timeline) - 1; i >= 0 && m.At-w.timeline[i].At < time.Minute; i-- {
		if w.timeline[i].What == m.What {
			w.timeline[i].Times++
			return
		}
	}
	w.timeline = append(w.timeline, m)
}

func newDigest() hash.Hash { return sha256.New() }

func (w *world) sum() string { return hex.EncodeToString(w.digest.Sum(nil)) }

var identity = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// anonymous replaces what nobody can guess by the order in which it appears.
func (w *world) anonymous(text string) string {
	return identity.ReplaceAllStringFunc(text, w.name)
}

// name is a short name of an ID.
func (w *world) name(id string) string {
	short, ok := w.names[id]
	if !ok {
		short = fmt.Sprintf("#%d", len(w.names)+1)
		w.names[id] = short
	}
	return short
}

// subject names what a piece of work is done on.
func (w *world) subject(work *bmdb.Work) string {
	if work.Subject.Machine != "" {
		return w.name(string(work.Subject.Machine))
	}
	return string(work.Subject.Provider)
}

// outcome is how work ended, in words.
func (w *world) outcome(o shepherd.Outcome) string {
	switch o := o.(type) {
	case shepherd.Finish:
		return "finished"
	case shepherd.Fail:
		return "failed: " + w.anonymous(shepherd.Cause(o.Err))
	case shepherd.Cancel:
		return "handed back: " + w.anonymous(o.Reason)
	}
	return "lost"
}
