package inventory

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// maxSize is how much a ConfigMap holds.
const maxSize = 1 << 20

// ConfigMaps is what the store needs of the client for the ConfigMaps of our namespace.
type ConfigMaps interface {
	Get(ctx context.Context, name string, o metav1.GetOptions, sub ...string) (*unstructured.Unstructured, error)
	Create(ctx context.Context, m *unstructured.Unstructured, o metav1.CreateOptions, sub ...string) (*unstructured.Unstructured, error)
	Update(ctx context.Context, m *unstructured.Unstructured, o metav1.UpdateOptions, sub ...string) (*unstructured.Unstructured, error)
}

// Version of a stored inventory; empty: there is none, or it is not known.
type Version string

// Read returns the inventory and its version; an empty one if there is none. Faults names lines
// that cannot be read.
func Read(ctx context.Context, maps ConfigMaps) (i *Inventory, v Version, faults, err error) {
	stored, err := maps.Get(ctx, Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return New(), "", nil, nil
	}
	if err != nil {
		return nil, "", nil, fmt.Errorf("read the inventory: %w", err)
	}
	data, _, err := unstructured.NestedStringMap(stored.Object, "data")
	if err != nil {
		return nil, "", nil, fmt.Errorf("read the inventory: %w", err)
	}
	i, faults = Parse(data)
	return i, Version(stored.GetResourceVersion()), faults, nil
}

// Write stores the inventory if the stored one still has the version (empty: if there is none), and
// returns its new version. After any error, what is stored is not known.
func Write(ctx context.Context, maps ConfigMaps, i *Inventory, v Version) (Version, error) {
	size, data := 0, map[string]any{}
	for kind, lines := range i.Data() {
		size += len(kind) + len(lines)
		data[kind] = lines
	}
	if size > maxSize {
		return "", fmt.Errorf("the inventory would have %d bytes; a ConfigMap holds %d", size, maxSize)
	}
	m := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "data": data,
		"metadata": map[string]any{
			"name": Name, "namespace": Namespace, "labels": map[string]any{object.Label: "true"},
			"annotations": map[string]any{
				object.Description: "Which objects the Ironherd reconciler has created: only these does it ever delete. Written by it alone.",
			},
		},
	}}
	var err error
	if v == "" {
		m, err = maps.Create(ctx, m, metav1.CreateOptions{FieldManager: object.Manager})
	} else {
		m.SetResourceVersion(string(v))
		m, err = maps.Update(ctx, m, metav1.UpdateOptions{FieldManager: object.Manager})
	}
	if err != nil {
		return "", fmt.Errorf("write the inventory: %w", err)
	}
	if m.GetResourceVersion() == "" {
		return "", errors.New("write the inventory: the server gave it no version")
	}
	return Version(m.GetResourceVersion()), nil
}
