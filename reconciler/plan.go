package reconciler

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/reconciler/node"
)

// Plan returns what a pass of the planner would change if the node of the config led. It asks etcd
// what a Service asks for a pass: which overrides hold, what is approved, and whether other nodes
// have the same manifests. Of the config it needs Node, Build, Layout and Logger. It writes
// nothing.
//
// A planner that does not belong to a Service asks nobody: Planner.Plan alone then takes nothing
// for overridden, and other nodes for agreed.
func Plan(ctx context.Context, config Config, client *clientv3.Client, planner Planner) (Diff, error) {
	if overridable, can := planner.(Overridable); can {
		overrides, err := readOverrides(ctx, client, config.Layout)
		if err != nil {
			return Diff{}, fmt.Errorf("read the overrides: %w", err)
		}
		overridable.SetOverrides(overrides)
	}
	if sourcer, can := planner.(Sourcer); can {
		registry := node.NewRegistry(client, config.Layout, config.Logger)
		sourcer.AskConsent(func(ctx context.Context, own node.Source) (Consent, error) {
			return askConsent(ctx, config, client, registry, nil, own)
		})
	}
	return planner.Plan(ctx)
}
