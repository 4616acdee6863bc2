package reconciler

import (
	"context"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/reconciler"
)

// Config is one node's reconciler.
type Config struct {
	// Node is the name of this node, as in its record.
	Node string
	// Build is the release of this program, and those that it works with.
	Build Build
	// Layout says where the keys are in etcd; the zero value: below /ironherd/kubernetes.
	Layout Layout
	// TTL is how long after its death a leader is replaced: whole seconds, at least 2; zero: 10 s.
	TTL time.Duration
	// Settle is how long a new leader waits for the last requests of the one before; zero: 5 s.
	Settle time.Duration
	// FullPass is the time between two passes when nothing was seen to change; zero: 30 s.
	FullPass time.Duration
	// Logger is where the service logs.
	Logger *slog.Logger
	// Observer is called after passes and announcements; may be nil.
	Observer Observer
}

// Observer is called with what a service does, for metrics. It must be safe for concurrent use, and
// must not wait.
type Observer interface {
	// PassEnded is called after each pass.
	PassEnded(report Report, took time.Duration, err error)
	// Announced is called after each accepted write of the status.
	Announced(status Status)
}

// Service is the reconciler of one node.
type Service struct{ service *reconciler.Service }

// NewService returns the reconciler of a node. It refuses a nil client, applier or logger.
func NewService(config Config, client *clientv3.Client, applier Applier) (*Service, error) {
	if err := missing(config.Logger, client, applier); err != nil {
		return nil, err
	}
	inner := reconciler.Config{
		Node: config.Node, Build: config.Build, Layout: config.Layout, TTL: config.TTL, Settle: config.Settle, FullPass: config.FullPass,
		Logger: config.Logger,
	}
	if config.Observer != nil {
		inner.Observer = observing{config.Observer}
	}
	s, err := reconciler.New(inner, client, applying{applier})
	if err != nil {
		return nil, err
	}
	return &Service{service: s}, nil
}

// Component is one long-lived part of a service.
type Component struct {
	// Name for people; unique within a service.
	Name string
	// Serve runs until ctx ends. After an error it has to be called again, after a pause; nil with ctx
	// alive means that there is nothing left to do. Calls must not overlap.
	Serve func(ctx context.Context) error
	// Check asks whether it works, beyond running; may be nil.
	Check func(ctx context.Context) error
}

// Components returns what a program has to run at the same time, in a supervision tree of its own.
// Those that are last have to be stopped first: with them the leadership is given up.
func (s *Service) Components() []Component {
	var all []Component
	for _, c := range s.service.Components() {
		all = append(all, Component{Name: c.Name, Serve: c.Serve, Check: c.Check})
	}
	return all
}

// State returns what the service is doing. Safe for concurrent use.
func (s *Service) State() State {
	now := s.service.State()
	return State{
		Campaign: now.Campaign, Term: now.Term, Doing: now.Doing, Blocked: now.Blocked, Fault: now.Fault,
		PassedAt: now.PassedAt, PassError: now.PassError, PassReady: now.PassReady, Status: now.Status, Nodes: now.Nodes,
	}
}

// State is what a service is doing, for people and metrics.
type State struct {
	// Campaign says whether this node may lead, and why.
	Campaign Verdict
	// Term is the number of our leadership; 0 when we do not lead.
	Term int64
	// Doing says in one clause what we do as the leader; empty when we do not lead. Blocked is why we
	// wait before we may change anything; empty: we do not.
	Doing, Blocked string
	// Fault is why this node's API server does not answer; empty: it does, or was not asked yet.
	Fault string
	// PassedAt, PassError and PassReady are of the last pass of this leadership. PassReady tells
	// that API servers may rely on what they need, whatever the error says.
	PassedAt  time.Time
	PassError string
	PassReady bool
	// Status and Nodes as they were seen last.
	Status Observed
	Nodes  NodeSet
}
