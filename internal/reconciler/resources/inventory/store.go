package inventory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

const (
	// partSize is how much a part may hold before there are more parts. A ConfigMap holds 1 MiB.
	partSize = 768 << 10
	// maxParts is how many parts there may be: they hold some half a million objects.
	maxParts = 64
	// countAnnotation on the first part holds the number of parts.
	countAnnotation = "ironherd.dev/parts"
)

// ErrFull tells that the inventory cannot hold what it should. Nothing was sent.
var ErrFull = errors.New("the inventory is full")

// ConfigMaps is what the store needs of the client for the ConfigMaps of our namespace.
type ConfigMaps interface {
	Get(ctx context.Context, name string, o metav1.GetOptions, sub ...string) (*unstructured.Unstructured, error)
	Create(ctx context.Context, m *unstructured.Unstructured, o metav1.CreateOptions, sub ...string) (*unstructured.Unstructured, error)
	Update(ctx context.Context, m *unstructured.Unstructured, o metav1.UpdateOptions, sub ...string) (*unstructured.Unstructured, error)
}

// Stored is the parts as the server has them.
type Stored struct{ parts []part }

// part is one ConfigMap. Its version is empty if there is none.
type part struct {
	version string
	data    map[string]string
}

// Version returns the resourceVersion of a part; an empty one if the part does not exist.
func (s Stored) Version(part int) string { return s.parts[part].version }

// Is reports whether the versions are those of the parts.
func (s Stored) Is(versions []string) bool {
	for n := range max(len(s.parts), len(versions)) {
		var have, seen string
		if n < len(s.parts) {
			have = s.parts[n].version
		}
		if n < len(versions) {
			seen = versions[n]
		}
		if have != seen {
			return false
		}
	}
	return true
}

// Seen returns the versions of the parts that a watch has seen, for Stored.Is. The
// function returns the version of the ConfigMap of a name, or nothing.
func Seen(version func(name string) string) []string {
	seen := make([]string, 0, 1)
	for n := range maxParts {
		if v := version(PartName(n)); v != "" || n == 0 {
			for len(seen) <= n {
				seen = append(seen, "")
			}
			seen[n] = v
		}
	}
	return seen
}

// Read returns the inventory and how it is stored; an empty one if there is none. AtLeast is how
// many parts there are known to be. Faults names lines that cannot be read.
func Read(ctx context.Context, configMaps ConfigMaps, atLeast int) (i *Inventory, s Stored, faults, err error) {
	count := 1
	for n := 0; n < count; n++ {
		stored, err := configMaps.Get(ctx, PartName(n), metav1.GetOptions{})
		switch {
		case object.NotFound(err):
			s.parts = append(s.parts, part{})
		case err != nil:
			return nil, Stored{}, nil, fmt.Errorf("read the inventory: %w", err)
		default:
			data, _, err := unstructured.NestedStringMap(stored.Object, "data")
			if err != nil {
				return nil, Stored{}, nil, fmt.Errorf("read the inventory: %s: %w", PartName(n), err)
			}
			s.parts = append(s.parts, part{version: stored.GetResourceVersion(), data: data})
		}
		if n == 0 {
			told := 1
			if stored != nil {
				told, _ = strconv.Atoi(stored.GetAnnotations()[countAnnotation])
			}
			for count < min(max(told, atLeast), maxParts) {
				count *= 2
			}
		}
	}
	all := make([]map[string]string, len(s.parts))
	for n, p := range s.parts {
		all[n] = p.data
	}
	i, faults = Parse(all)
	return i, s, faults, nil
}

// Write stores the inventory where it differs, if each part that is written still has the version
// that is given, and returns how it is stored then, with the parts that were written. After ErrFull
// everything is as it was. After any other error, what is stored is not known.
func Write(ctx context.Context, configMaps ConfigMaps, i *Inventory, s Stored) (then Stored, written []int, err error) {
	data, err := i.fit(len(s.parts))
	if err != nil {
		return s, nil, err
	}
	then.parts = make([]part, len(data))
	copy(then.parts, s.parts)
	for n := len(data) - 1; n >= 0; n-- {
		grown := len(data) > len(s.parts) && (n >= len(s.parts) || n == 0)
		if !grown && maps.Equal(data[n], then.parts[n].data) {
			continue
		}
		version, err := writePart(ctx, configMaps, n, len(data), data[n], then.parts[n].version)
		if err != nil {
			return Stored{}, nil, fmt.Errorf("write the inventory: %s: %w", PartName(n), err)
		}
		then.parts[n] = part{version: version, data: data[n]}
		written = append(written, n)
	}
	return then, written, nil
}

// fit returns the data in as many parts as are needed, and not in fewer than there are.
func (i *Inventory) fit(parts int) ([]map[string]string, error) {
	largest := 0
	for ; parts <= maxParts; parts *= 2 {
		data := i.Data(parts)
		largest = 0
		for _, d := range data {
			size := 0
			for kind, lines := range d {
				size += len(kind) + len(lines)
			}
			largest = max(largest, size)
		}
		if largest <= partSize {
			return data, nil
		}
	}
	return nil, fmt.Errorf("%w: of its %d parts one would have %d bytes; it may have %d", ErrFull, maxParts, largest, partSize)
}

func writePart(ctx context.Context, configMaps ConfigMaps, n, count int, data map[string]string, version string) (string, error) {
	content := map[string]any{}
	for kind, lines := range data {
		content[kind] = lines
	}
	annotations := map[string]any{
		object.Description: "Which objects the Ironherd reconciler has created: only these does it ever delete. Written by it alone.",
	}
	if n == 0 && count > 1 {
		annotations[countAnnotation] = strconv.Itoa(count)
	}
	m := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "data": content,
		"metadata": map[string]any{
			"name": PartName(n), "namespace": Namespace, "labels": map[string]any{object.Label: "true"}, "annotations": annotations,
		},
	}}
	var err error
	if version == "" {
		m, err = configMaps.Create(ctx, m, metav1.CreateOptions{FieldManager: object.Manager})
	} else {
		m.SetResourceVersion(version)
		m, err = configMaps.Update(ctx, m, metav1.UpdateOptions{FieldManager: object.Manager})
	}
	if err != nil {
		return "", err
	}
	if m.GetResourceVersion() == "" {
		return "", errors.New("the server gave it no version")
	}
	return m.GetResourceVersion(), nil
}
