// Package engine keeps a set of objects in a Kubernetes cluster: it applies them by server-side
// apply, repairs what drifts, and deletes what it has created and is no longer wanted.
//
// What it promises:
//
//   - A pass with nothing to do makes no request: metadata of what there is, is watched.
//   - It deletes what it has created, by UID, and nothing else. What it has created is in an
//     inventory in the cluster (ConfigMaps in kube-system). Labels and names prove nothing.
//   - One object's failure stops nothing else.
//
// An Engine is an Applier of package reconciler, so that reconciler.Run drives it through upgrades
// with one leader among several nodes. Alone, a program calls Run in one goroutine and Pass in
// another, and sees to it that no other Engine works on the same cluster at the same time: the
// manager of fields, the label and the inventory are the same for all, those of Ironherd's own
// reconciler included.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
	"github.com/ironherd/ironherd/reconciler/node"
)

// Options say what is wanted, and how far a pass may go.
type Options struct {
	// Objects that this release of the program wants. API servers are let serve only when they are
	// as wanted. The engine takes a copy.
	Objects []*unstructured.Unstructured
	// Manifests is a directory of manifests that are wanted, too; each pass reads it anew. Empty:
	// none.
	Manifests string
	// Force takes fields that other managers have. Without it such a field is a failure that names
	// the managers.
	Force bool
	// MaxPrune is how many objects that are no longer in the manifests a pass may delete; if there
	// are more, it deletes none, and fails. 0: any number. Whatever it is, a pass also deletes none
	// if they are more than half of what was created from manifests. An approval
	// (reconciler.Approve) overrules both.
	MaxPrune int
	// Logger is where the engine logs; nil: nowhere.
	Logger *slog.Logger
}

// Engine keeps the objects of one cluster. Safe for concurrent use, but for Run and Pass, each of
// which may be called only once at a time.
type Engine struct{ applier *resources.Applier }

var (
	_ reconciler.Applier     = (*Engine)(nil)
	_ reconciler.Planner     = (*Engine)(nil)
	_ reconciler.Prober      = (*Engine)(nil)
	_ reconciler.Sourcer     = (*Engine)(nil)
	_ reconciler.Overridable = (*Engine)(nil)
	_ reconciler.Publisher   = (*Engine)(nil)
	_ reconciler.Staged      = (*Engine)(nil)
	_ reconciler.Identifier  = (*Engine)(nil)
)

// New returns an engine for the API server that config reaches, and asks nothing of it yet. It
// reports every fault of the options.
func New(config *rest.Config, options Options) (*Engine, error) {
	if config == nil {
		return nil, errors.New("an engine needs to know how to reach its API server: config is nil")
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	objects := make([]*object.Object, 0, len(options.Objects))
	var faults []error
	for i, content := range options.Objects {
		if content == nil {
			faults = append(faults, fmt.Errorf("object %d is nil", i))
			continue
		}
		o, err := object.NewBuiltIn(content.DeepCopy().Object, fmt.Sprintf("object %d", i), object.Required)
		if err != nil {
			faults = append(faults, fmt.Errorf("object %d: %w", i, err))
			continue
		}
		objects = append(objects, o)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	applier, err := resources.New(config, resources.Options{
		BuiltIn: objects, Manifests: options.Manifests, Force: options.Force, MaxPrune: options.MaxPrune,
	}, options.Logger)
	if err != nil {
		return nil, err
	}
	return &Engine{applier: applier}, nil
}

// Run keeps the watches that Pass relies on until ctx ends. It writes nothing to the cluster.
func (e *Engine) Run(ctx context.Context) error { return e.applier.Run(ctx) }

// Pass compares everything with what is wanted, repairs what differs, and deletes what is no longer
// wanted. It waits until the watches of Run are in step. It returns nil only if everything is as
// wanted; the report names each object that is not, and says why.
func (e *Engine) Pass(ctx context.Context) (reconciler.Report, error) { return e.applier.Pass(ctx) }

// Changed receives when a pass may find something to do. It has room for one.
func (e *Engine) Changed() <-chan struct{} { return e.applier.Changed() }

// Plan returns what a pass would change, and changes nothing. It needs no Run.
func (e *Engine) Plan(ctx context.Context) (reconciler.Diff, error) { return e.applier.Plan(ctx) }

// Probe asks the API server once whether it is ready and accepts our credentials.
func (e *Engine) Probe(ctx context.Context) error { return e.applier.Probe(ctx) }

// Ready asks the API server once whether it is ready, whatever it thinks of our credentials. It is
// what reconciler.Expose asks: when ours have expired, clients still have theirs.
func (e *Engine) Ready(ctx context.Context) error { return e.applier.Ready(ctx) }

// Cluster asks the API server for the UID of the namespace kube-system, which our user must be
// allowed to get. A Service calls it.
func (e *Engine) Cluster(ctx context.Context) (string, error) { return e.applier.Cluster(ctx) }

// Source is what the manifests say. A Service puts it into the record of its node.
func (e *Engine) Source(ctx context.Context) node.Source { return e.applier.Source(ctx) }

// AskConsent sets what Pass asks before it deletes what is no longer in the manifests. A Service
// calls it. Without one, nobody else is asked.
func (e *Engine) AskConsent(ask func(context.Context, node.Source) (reconciler.Consent, error)) {
	e.applier.AskConsent(ask)
}

// OnReady sets what Pass calls when Objects are as wanted and the manifests are still to come. A
// Service calls it.
func (e *Engine) OnReady(ready func(context.Context) error) { e.applier.OnReady(ready) }

// SetOverrides sets what Pass leaves alone and what it takes over. A Service calls it.
func (e *Engine) SetOverrides(overrides []reconciler.Override) { e.applier.SetOverrides(overrides) }

// Publish writes how the objects stand into the ConfigMap kube-system/ironherd-reconciler-summary,
// if that is news. A Service calls it.
func (e *Engine) Publish(ctx context.Context, s reconciler.Standing) error {
	return e.applier.Publish(ctx, s)
}

// Close closes idle connections. Nothing else may be called afterwards.
func (e *Engine) Close() { e.applier.Close() }
