package service

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/thejerf/suture/v4"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Options is how patient a tree is.
type Options struct {
	Logger *slog.Logger
	// Drain bounds the whole of stopping; zero: 30 s.
	Drain time.Duration
	// Pause is waited before another start of a component that keeps failing; zero: 2 s. Up to half of
	// it is added as jitter.
	Pause time.Duration
	// MayRead says who is told the errors of components; nil: everybody. They may name hosts, users
	// and files.
	MayRead func(*http.Request) bool
}

// Tree supervises components.
type Tree struct {
	options  Options
	members  []*member
	draining atomic.Bool
}

// New returns a tree of these components. A component that cannot be run, or a name that is used
// twice, is KindInvalid.
func New(options Options, components ...Component) (*Tree, error) {
	if options.Drain <= 0 {
		options.Drain = 30 * time.Second
	}
	if options.Pause <= 0 {
		options.Pause = 2 * time.Second
	}
	t := &Tree{options: options}
	names := map[string]bool{}
	for _, c := range components {
		if err := c.validate(); err != nil {
			return nil, err
		}
		if names[c.Name] {
			return nil, fleet.Errorf(fleet.KindInvalid, "two components are named %s", c.Name)
		}
		names[c.Name] = true
		t.members = append(t.members, &member{
			Component: c, logger: options.Logger,
			health: Health{Name: c.Name, Condition: Waiting, Since: time.Now()},
		})
	}
	return t, nil
}

// Run starts the components, and stops them when ctx ends. It returns nil when all have stopped, or
// a KindTimeout error that names those who had not stopped in time. A tree runs once.
func (t *Tree) Run(ctx context.Context) error {
	base := context.WithoutCancel(ctx)
	running := make([]*stage, stages)
	for s := stages - 1; s >= 0; s-- {
		running[s] = t.start(base, s)
	}
	<-ctx.Done()
	t.draining.Store(true)
	start := time.Now()
	var late []string
	for s, share := range shares {
		late = append(late, running[s].stop(base, start.Add(time.Duration(share*float64(t.options.Drain))))...)
	}
	if len(late) > 0 {
		return fleet.Errorf(fleet.KindTimeout, "not stopped after %s: %s", time.Since(start).Round(time.Second), strings.Join(late, ", "))
	}
	return nil
}

// Health returns how each component is, in the order in which they were given.
func (t *Tree) Health(ctx context.Context) []Health {
	all := make([]Health, len(t.members))
	for i, m := range t.members {
		all[i] = m.current(ctx)
	}
	return all
}

// Draining says whether the tree has begun to stop.
func (t *Tree) Draining() bool { return t.draining.Load() }

// shares is by which part of the drain time each stage must have stopped: one that does not stop
// leaves some to the next.
var shares = [stages]float64{Loops: 0.6, Listeners: 0.8, State: 1}

// stage is the running components of one stage.
type stage struct {
	cancel  context.CancelFunc
	members []*member
	ended   []<-chan struct{}
}

func (t *Tree) start(ctx context.Context, which Stage) *stage {
	ctx, cancel := context.WithCancel(ctx)
	s := &stage{cancel: cancel}
	for _, m := range t.members {
		if m.Stage != which {
			continue
		}
		// A supervisor each: the pauses of one that keeps failing are its own.
		supervisor := suture.New(m.Name, suture.Spec{
			EventHook:        func(suture.Event) {}, // the member tells it better
			FailureThreshold: 2,
			FailureDecay:     30,
			FailureBackoff:   t.options.Pause,
			Timeout:          2 * t.options.Drain, // not the one that counts
		})
		supervisor.Add(m)
		s.members = append(s.members, m)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = supervisor.Serve(ctx) // returns only why it was stopped
		}()
		s.ended = append(s.ended, ended)
	}
	return s
}

// stop returns the names of those who did not stop by the deadline.
func (s *stage) stop(ctx context.Context, by time.Time) (late []string) {
	s.cancel()
	deadline, done := context.WithDeadline(ctx, by)
	defer done()
	for i, ended := range s.ended {
		select {
		case <-ended:
			continue
		case <-deadline.Done():
		}
		select { // it may have ended at the same moment
		case <-ended:
		default:
			late = append(late, s.members[i].Name)
		}
	}
	return late
}
