package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// Kind is how to address the objects of a kind.
type Kind struct {
	Resource   schema.GroupVersionResource
	Namespaced bool
	// HasStatus tells that controllers write the status of such objects by itself.
	HasStatus bool
}

// ConfigMap is the kind that every server has.
var ConfigMap = Kind{Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Namespaced: true}

// Namespace is the kind of namespaces.
var Namespace = Kind{Resource: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}}

// StorageClass is the kind of storage classes.
var StorageClass = Kind{Resource: schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"}}

// Kinds are the kinds that a server had when it was asked. A value never changes.
type Kinds struct {
	exact     map[schema.GroupVersionKind]Kind
	preferred map[schema.GroupKind]Kind
	refused   map[schema.GroupVersionKind]bool // kinds whose objects the server does not store
	status    map[schema.GroupVersionResource]bool
	failed    map[schema.GroupVersion]error
}

// ErrNoKind is the error of Kinds for a kind that is not there.
var ErrNoKind = errors.New("the server does not have that kind")

// Kinds asks the server which kinds it has. It leaves out groups that cannot be asked for now, such
// as those of an aggregated API server that is down; Kinds.Of then fails with the reason.
func (c *Client) Kinds(ctx context.Context) (*Kinds, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	groups, lists, err := c.kinds.ServerGroupsAndResourcesWithContext(ctx)
	k := &Kinds{
		exact: map[schema.GroupVersionKind]Kind{}, preferred: map[schema.GroupKind]Kind{},
		refused: map[schema.GroupVersionKind]bool{}, failed: map[schema.GroupVersion]error{},
		status: map[schema.GroupVersionResource]bool{},
	}
	if err != nil {
		var partly *discovery.ErrGroupDiscoveryFailed
		if !errors.As(err, &partly) {
			return nil, fmt.Errorf("ask which kinds there are: %w", err)
		}
		k.failed = partly.Groups
	}
	prefers := map[string]string{}
	for _, g := range groups {
		prefers[g.Name] = g.PreferredVersion.Version
	}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue // a server that names a group so serves nothing that can be asked for
		}
		for _, r := range list.APIResources {
			k.add(version, r, prefers[version.Group] == version.Version)
		}
	}
	return k, nil
}

func (k *Kinds) add(version schema.GroupVersion, r metav1.APIResource, preferred bool) {
	if of, part, parted := strings.Cut(r.Name, "/"); parted {
		if part == "status" {
			k.status[version.WithResource(of)] = true
		}
		return
	}
	gvk := version.WithKind(r.Kind)
	for _, verb := range []string{"get", "list", "watch", "patch", "delete"} {
		if !slices.Contains(r.Verbs, verb) {
			k.refused[gvk] = true
			return
		}
	}
	kind := Kind{Resource: version.WithResource(r.Name), Namespaced: r.Namespaced}
	k.exact[gvk] = kind
	if _, have := k.preferred[gvk.GroupKind()]; !have || preferred {
		k.preferred[gvk.GroupKind()] = kind
	}
}

// Of returns how a wanted object is reached.
func (k *Kinds) Of(o *object.Object) (Kind, error) {
	version := schema.GroupVersion{Group: o.Group, Version: o.Version}
	gvk := version.WithKind(o.Kind)
	kind, ok := k.exact[gvk]
	kind.HasStatus = k.status[kind.Resource]
	switch {
	case !ok && k.refused[gvk]:
		return kind, fmt.Errorf("%s %s is not a kind of objects that are kept", version, o.Kind)
	case !ok && k.failed[version] != nil:
		return kind, fmt.Errorf("%w: %s %s: %w", ErrNoKind, version, o.Kind, k.failed[version])
	case !ok:
		return kind, fmt.Errorf("%w: %s %s", ErrNoKind, version, o.Kind)
	case kind.Namespaced && o.Namespace == "":
		return kind, errors.New("the namespace is wrong: metadata.namespace must be set")
	case !kind.Namespaced && o.Namespace != "":
		return kind, errors.New("the namespace is wrong: metadata.namespace must not be set: the kind is not in namespaces")
	}
	return kind, nil
}

// Any returns how objects of a kind are reached, in whatever version.
func (k *Kinds) Any(key object.Key) (Kind, error) {
	kind, ok := k.preferred[schema.GroupKind{Group: key.Group, Kind: key.Kind}]
	if !ok {
		return kind, fmt.Errorf("%w: %s", ErrNoKind, key.Kind)
	}
	kind.HasStatus = k.status[kind.Resource]
	return kind, nil
}

// Unasked returns why a group could not be asked for, in one of its versions or in all; nil: it
// could.
func (k *Kinds) Unasked(group string) error {
	for version, err := range k.failed {
		if version.Group == group {
			return err
		}
	}
	return nil
}

// Whole reports whether every group could be asked for.
func (k *Kinds) Whole() bool { return len(k.failed) == 0 }
