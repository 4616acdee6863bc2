package resources

import (
	"errors"
	"fmt"
	"log/slog"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ironherd/ironherd/internal/reconciler/resources/api"
	"github.com/ironherd/ironherd/internal/reconciler/resources/builtin"
	"github.com/ironherd/ironherd/internal/reconciler/resources/manifest"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// Options say which objects are wanted besides the release's own, and how far a pass may go.
type Options struct {
	// Manifests is a directory of manifests, which each pass reads anew; empty: none. It should be the
	// same on every node, because only the leader's counts.
	Manifests string
	// Force takes all fields that other managers own. Without it such a field is a failure that names
	// the managers.
	Force bool
	// MaxPrune is how many objects that are no longer wanted a pass may delete. If there are more, it
	// deletes none, and fails. 0: half of all that we have created, but at least 10.
	MaxPrune int
	// BuiltIn replaces the release's own set (builtin.Objects).
	BuiltIn []*object.Object
}

// Validate reports every fault.
func (o Options) Validate() error {
	if o.MaxPrune < 0 {
		return errors.New("max prune must not be negative")
	}
	return nil
}

// Open prepares an Applier for the API server that a kubeconfig file names in its current context.
// Nothing is asked of it yet.
func Open(kubeconfig string, o Options, log *slog.Logger) (*Applier, error) {
	if kubeconfig == "" {
		return nil, errors.New("kubeconfig must be set: a file that says how to reach the API server")
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return New(config, o, log)
}

// New is Open with a client configuration instead of a file.
func New(config *rest.Config, o Options, log *slog.Logger) (*Applier, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.BuiltIn == nil {
		objects, err := builtin.Objects()
		if err != nil {
			return nil, fmt.Errorf("built-in resources: %w", err)
		}
		o.BuiltIn = objects
	}
	client, err := api.New(config, log)
	if err != nil {
		return nil, err
	}
	return &Applier{
		client: client, options: o, log: log, directory: manifest.At(o.Manifests),
		changed: make(chan struct{}, 1), attached: make(chan struct{}),
	}, nil
}
