package resources

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/ironherd/ironherd/internal/reconciler/resources/api"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler/node"
)

// Kept is what the reconciler keeps, as far as one node can tell.
type Kept struct {
	// Objects are those that the release and the manifests of this node want, and those that the
	// inventory says were created, by kind and name.
	Objects []object.Key
	// Source is what the manifests of this node say. Other nodes may have others.
	Source node.Source
	// Unknown says in one clause each why there may be more.
	Unknown []string
}

// FindKept reads the manifests, and asks the API server that a kubeconfig names for the inventory.
// What cannot be read or asked is in Unknown.
func FindKept(ctx context.Context, kubeconfig string, o Options) (Kept, error) {
	log := slog.New(slog.DiscardHandler)
	a, err := offline(o, log)
	if err != nil {
		return Kept{}, err
	}
	want := a.wantSettled(ctx)
	k := Kept{Source: want.source()}
	if !want.whole {
		k.Unknown = append(k.Unknown, fmt.Sprintf("%d of the manifests of this node cannot be read", want.unread))
	}
	keys := map[object.Key]bool{}
	for key := range want.byKey {
		keys[key] = true
	}
	created, err := readCreated(ctx, kubeconfig, log)
	if err != nil {
		k.Unknown = append(k.Unknown, "the inventory cannot be read: "+err.Error())
	}
	for key := range created {
		keys[key] = true
	}
	k.Objects = slices.SortedFunc(maps.Keys(keys), compareKeys)
	return k, nil
}

// Source returns what the manifests of this node say. It asks nobody.
func Source(ctx context.Context, o Options) (node.Source, error) {
	a, err := offline(o, slog.New(slog.DiscardHandler))
	if err != nil {
		return node.Source{}, err
	}
	return a.wantSettled(ctx).source(), nil
}

// readCreated reads the inventory.
func readCreated(ctx context.Context, kubeconfig string, log *slog.Logger) (map[object.Key]inventory.Entry, error) {
	a, err := Open(kubeconfig, Options{BuiltIn: nothing}, log)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	ctx, cancel := context.WithTimeout(a.client.Logging(ctx), api.Timeout)
	defer cancel()
	stored, _, faults, err := inventory.Read(ctx, a.client.ConfigMaps(inventory.Namespace), 1)
	if err != nil {
		return nil, err
	}
	return stored.Entries, faults
}
