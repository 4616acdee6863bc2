package reconciler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/reconciler/election"
	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/reconciler/gate"
	"github.com/ironherd/ironherd/reconciler/node"
	"github.com/ironherd/ironherd/reconciler/release"
	"github.com/ironherd/ironherd/reconciler/watch"
)

// Config is one node's reconciler.
type Config struct {
	// Node is the name of this node, as in its record.
	Node string
	// Build is the release of this program, and those that it works with.
	Build release.Build
	// Layout says where the keys are in etcd; the zero value: below etcd.DefaultRoot.
	Layout etcd.Layout
	// TTL is how long after its death a leader is replaced: whole seconds, at least
	// election.MinTTL; zero: DefaultTTL.
	TTL time.Duration
	// Settle is how long a new leader waits for the last requests of the one before; zero:
	// DefaultSettle.
	Settle time.Duration
	// FullPass is the time between two passes when nothing was seen to change; zero:
	// DefaultFullPass.
	FullPass time.Duration
	// Logger is where the service logs; it must be set.
	Logger *slog.Logger
	// Observer is called after passes and announcements; may be nil.
	Observer Observer
}

// The defaults of a Config.
const (
	DefaultTTL      = 10 * time.Second
	DefaultSettle   = 5 * time.Second
	DefaultFullPass = 30 * time.Second
)

// Observer is called with what a service does, for metrics. It must be safe for concurrent use, and
// must not wait.
type Observer interface {
	// PassEnded is called after each pass.
	PassEnded(report Report, took time.Duration, err error)
	// Announced is called after each accepted write of the status.
	Announced(status gate.Status)
}

func (c *Config) setDefaults() {
	for value, otherwise := range map[*time.Duration]time.Duration{
		&c.TTL: DefaultTTL, &c.Settle: DefaultSettle, &c.FullPass: DefaultFullPass,
	} {
		if *value == 0 {
			*value = otherwise
		}
	}
	if c.Layout.Root == "" {
		c.Layout.Root = etcd.DefaultRoot
	}
}

// Validate reports every fault, as failure.Invalid.
func (c Config) Validate() error {
	errs := []error{node.CheckName(c.Node), c.Build.Validate(), c.Layout.Validate()}
	for name, value := range map[string]time.Duration{"settling time": c.Settle, "time between full passes": c.FullPass} {
		if value < 0 {
			errs = append(errs, fleet.Errorf(fleet.KindInvalid, "the %s must not be negative", name))
		}
	}
	if c.TTL < election.MinTTL || c.TTL%time.Second != 0 {
		errs = append(errs, fleet.Errorf(fleet.KindInvalid, "the election's TTL must be whole seconds, at least %s, not %s", election.MinTTL, c.TTL))
	}
	return errors.Join(errs...)
}

// Service is the reconciler of one node, as components of a supervision tree. Run brings the tree
// along.
//
//	watch-nodes ──► nodes ──► watch-releases ──► verdict ──► elect ──► leadership
//	                                                                       │
//	watch-status ─► status ──► lead: Applier.Pass, the status ◄────────────┤
//	watch-overrides ► overrides ► lead                                     │
//	                           watch-resources: Applier.Run ◄──────────────┘
//	probe-api-server ──► fault ──► elect, lead
//
//	declare-source: Sourcer.Source, into this node's record
//	publish-summary: Publisher.Publish, while we lead
//
// Each component keeps what it knows in a watched value. One that fails is started again and finds
// the values as they are. No component can make another one act on what is no longer so: the status
// is written by conditional transactions alone, and whatever goes to the API server is bound to a
// context that ends before the leadership can.
type Service struct {
	config   Config
	client   *clientv3.Client
	applier  Applier
	can      capabilities
	registry *node.Registry

	nodes      watch.Memory[node.Set]
	status     watch.Memory[statusView]
	overrides  watch.Memory[etcd.Snapshot]
	sightings  sightings
	verdict    watch.Memory[gate.Verdict]
	leadership watch.Memory[*election.Leadership] // nil: none
	// fault is why this node's API server cannot be used; empty: it can. It is not set before the API
	// server was asked.
	fault watch.Memory[string]

	mu      sync.Mutex
	state   State
	passing passing
	// settled is the term for which the last requests of the leader before have landed.
	settled int64
	// same tells that etcd and the API server were of one cluster when both told it last, and other
	// that they were not. Before, neither is so.
	same  bool
	other error
}

// passing is the pass that is under way.
type passing struct {
	begun time.Time // zero: there is none
	// ready tells that API servers may rely on what they need. Then it calls onReady.
	ready   bool
	onReady func(context.Context) error
}

// overduePasses is how many times the time between full passes a pass may take until it is known
// whether API servers may rely on what they need.
const overduePasses = 10

// State is what a service is doing, for people and metrics.
type State struct {
	// Campaign says whether this node may lead, and why.
	Campaign gate.Verdict `json:"campaign"`
	// Term is the number of our leadership; 0 when we do not lead.
	Term int64 `json:"term"`
	// Doing says in one clause what we do as the leader; empty when we do not lead.
	Doing string `json:"doing,omitempty"`
	// Blocked is why we wait as the leader before we may change anything; empty: we do not.
	Blocked string `json:"blocked,omitempty"`
	// Fault is why this node's API server cannot be used; empty: it can, or was not asked yet.
	Fault string `json:"fault,omitempty"`
	// PassedAt, PassError and PassReady are of the last pass of this leadership; the last two are of
	// the one that is under way if that is overdue. PassReady tells that API servers may rely on
	// what they need, whatever the error says.
	PassedAt  time.Time `json:"passedAt,omitzero"`
	PassError string    `json:"passError,omitempty"`
	PassReady bool      `json:"passReady,omitempty"`
	// Status and Nodes as they were seen last.
	Status gate.Observed `json:"status"`
	Nodes  node.Set      `json:"nodes"`
}

// NewService returns the reconciler of a node. Zero durations and an empty root are set to their
// defaults. It refuses a nil logger, client or applier, and reports every fault of the
// configuration. The client stays the caller's.
func NewService(config Config, client *clientv3.Client, applier Applier) (*Service, error) {
	if err := missing(config.Logger, client, applier); err != nil {
		return nil, err
	}
	config.setDefaults()
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if config.Observer == nil {
		config.Observer = noObserver{}
	}
	s := &Service{
		config: config, client: client, applier: applier, can: capabilitiesOf(applier),
		registry: node.NewRegistry(client, config.Layout, config.Logger),
	}
	s.same = s.can.identifier == nil // nobody asks
	if sourcer := s.can.sourcer; sourcer != nil {
		sourcer.AskConsent(s.consent)
	}
	if staged, ok := applier.(Staged); ok {
		staged.OnReady(s.ready)
	}
	return s, nil
}

// missing reports what a service cannot do without.
func missing(logger *slog.Logger, client *clientv3.Client, applier Applier) error {
	var errs []error
	if logger == nil {
		errs = append(errs, fleet.Errorf(fleet.KindInvalid, "a reconciler needs a logger: Config.Logger is nil"))
	}
	if client == nil {
		errs = append(errs, fleet.Errorf(fleet.KindInvalid, "a reconciler needs a client of etcd: it is nil"))
	}
	if applier == nil {
		errs = append(errs, fleet.Errorf(fleet.KindInvalid, "a reconciler needs an applier: it is nil"))
	}
	return errors.Join(errs...)
}

// capabilities is what an Applier can do besides; nil: it cannot.
type capabilities struct {
	sourcer     Sourcer
	overridable Overridable
	prober      Prober
	publisher   Publisher
	identifier  Identifier
}

func capabilitiesOf(a Applier) (c capabilities) {
	c.sourcer, _ = a.(Sourcer)
	c.overridable, _ = a.(Overridable)
	c.prober, _ = a.(Prober)
	c.publisher, _ = a.(Publisher)
	c.identifier, _ = a.(Identifier)
	return c
}

// noObserver is the observer of a service without one.
type noObserver struct{}

func (noObserver) PassEnded(Report, time.Duration, error) {}
func (noObserver) Announced(gate.Status)                  {}

// Component is one long-lived part of a service.
type Component struct {
	// Name for people; unique within a service.
	Name string
	// Base tells that the others rest on it. It is stopped after all that are not, so that the
	// leadership is given up at once.
	Base bool
	// Serve runs until ctx ends. After an error it has to be called again, after a pause; nil with
	// ctx alive means that there is nothing left to do. Calls must not overlap.
	Serve func(ctx context.Context) error
	// Check asks whether it works, beyond running; may be nil.
	Check func(ctx context.Context) error
}

// Components returns what a program has to run at the same time, in a supervision tree of its own.
func (s *Service) Components() []Component {
	nodes, status := s.registry.Follower(), s.statusFollower()
	components := []Component{
		{Name: "watch-nodes", Base: true, Check: nodes.Check, Serve: func(ctx context.Context) error {
			return s.registry.Follow(ctx, nodes, s.nodes.Set)
		}},
		{Name: "watch-status", Base: true, Check: status.Check, Serve: func(ctx context.Context) error {
			return status.Run(ctx, func(snapshot etcd.Snapshot) { s.status.Set(viewOf(s.config.Layout, snapshot)) })
		}},
		{Name: "probe-api-server", Base: true, Serve: s.probe, Check: s.checkProbe},
		{Name: "watch-releases", Serve: s.watchReleases},
		{Name: "elect", Serve: s.elect},
		{Name: "watch-resources", Serve: s.watchResources},
		{Name: "lead", Serve: s.lead, Check: s.checkPass},
	}
	if sourcer := s.can.sourcer; sourcer != nil {
		components = append(components, Component{Name: "declare-source", Serve: func(ctx context.Context) error {
			return s.declare(ctx, sourcer)
		}})
	}
	if s.can.overridable != nil {
		overrides := &etcd.Follower{Client: s.client, Range: overrideRange(s.config.Layout), Logger: s.config.Logger}
		components = append(components, Component{Name: "watch-overrides", Base: true, Check: overrides.Check, Serve: func(ctx context.Context) error {
			return overrides.Run(ctx, func(snapshot etcd.Snapshot) {
				s.sightings.see(snapshot)
				s.overrides.Set(snapshot)
			})
		}})
	}
	if publisher := s.can.publisher; publisher != nil {
		components = append(components, Component{Name: "publish-summary", Serve: func(ctx context.Context) error {
			return s.publish(ctx, publisher)
		}})
	}
	return components
}

func (s *Service) statusFollower() *etcd.Follower {
	return &etcd.Follower{Client: s.client, Range: etcd.Range{Key: s.config.Layout.Status()}, Logger: s.config.Logger}
}

// State returns what the service is doing. Safe for concurrent use.
func (s *Service) State() State {
	s.mu.Lock()
	state, under := s.state, s.passing
	s.mu.Unlock()
	if took := time.Since(under.begun); !under.begun.IsZero() && !under.ready && took > overduePasses*s.config.FullPass {
		state.PassReady = false
		state.PassError = fmt.Sprintf("a pass has taken %s, and not yet found what API servers need as wanted", took.Round(time.Second))
	}
	state.Campaign, _ = s.verdict.Get()
	state.Nodes, _ = s.nodes.Get()
	state.Fault, _ = s.fault.Get()
	view, _ := s.status.Get()
	state.Status = view.Observed
	return state
}

func (s *Service) change(change func(*State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.state)
}

// ready is called in the middle of a pass, when everything that API servers need is as wanted.
func (s *Service) ready(ctx context.Context) error {
	if s.checkProbe(ctx) != nil {
		return nil //nolint:nilerr // what was compared may be old
	}
	s.mu.Lock()
	s.passing.ready = true
	onReady := s.passing.onReady
	s.mu.Unlock()
	if onReady == nil {
		return nil
	}
	return onReady(ctx)
}

// checkPass returns how the last pass of this leadership failed, if it did in what API servers
// need. A fault in somebody's manifest does not make the process unhealthy: `status` and the
// metrics tell of it.
func (s *Service) checkPass(context.Context) error {
	if state := s.State(); state.PassError != "" && !state.PassReady {
		return errors.New(state.PassError)
	}
	return nil
}
