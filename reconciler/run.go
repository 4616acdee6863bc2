package reconciler

import (
	"context"
	"errors"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/service"
)

// Options is what Run needs to know.
type Options struct {
	// Node is the name of this node, as in its record.
	Node string
	// Build is the release of this program, and those that it works with.
	Build Build
	// Client reaches etcd. It stays the caller's.
	Client *clientv3.Client
	// Root is the path of the keys in etcd; empty: /ironherd/kubernetes.
	Root string
	// Applier keeps the resources while this node leads. It may also be a Prober.
	Applier Applier
	// TTL is how long after its death a leader is replaced: whole seconds, at least 2; zero: 10 s.
	TTL time.Duration
	// Settle is how long a new leader waits for the last requests of the one before; zero: 5 s.
	Settle time.Duration
	// FullPass is the time between two passes when nothing was seen to change; zero: 30 s.
	FullPass time.Duration
	// Drain is how long stopping may take; zero: 10 s. The leadership ends at once in any case.
	Drain time.Duration
	// Logger is where the service logs; nil: nowhere.
	Logger *slog.Logger
	// Observer is called after passes and announcements; may be nil.
	Observer Observer
}

// Run is the reconciler of one node, in a supervision tree of its own. It registers the node if it
// has no record, stands for election while no newer release is present, and keeps the resources
// while it leads. It returns nil when ctx has ended and everything has stopped in order, and an
// error at once if an option is wrong.
func Run(ctx context.Context, o Options) error {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Drain == 0 {
		o.Drain = 10 * time.Second
	}
	s, err := NewService(Config{
		Node: o.Node, Build: o.Build, Layout: Layout{Root: o.Root}, TTL: o.TTL, Settle: o.Settle, FullPass: o.FullPass,
		Logger: o.Logger, Observer: o.Observer,
	}, o.Client, o.Applier)
	if err != nil {
		return err
	}
	tree, err := service.New(service.Options{Logger: o.Logger, Drain: o.Drain}, s.service.Components()...)
	if err != nil {
		return err
	}
	return tree.Run(ctx)
}

// missing reports what a service cannot do without.
func missing(logger *slog.Logger, client *clientv3.Client, applier Applier) error {
	var errs []error
	if logger == nil {
		errs = append(errs, errors.New("a reconciler needs a logger: Config.Logger is nil"))
	}
	if client == nil {
		errs = append(errs, errors.New("a reconciler needs a client of etcd: it is nil"))
	}
	if applier == nil {
		errs = append(errs, errors.New("a reconciler needs an applier: it is nil"))
	}
	return errors.Join(errs...)
}
