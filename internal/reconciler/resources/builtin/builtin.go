// Package builtin is what the release itself wants in every cluster: one file per kind, and one for
// the roles and their bindings. Each object says in its description annotation what it is for, for
// whoever comes across it.
//
// Objects are written in full where a server would default a field that matters to us, so that a
// change of its default changes nothing, and left out where it is the server's business.
//
// An operator selects the parts by name (Selection). The roles are selected by default, because the
// programs of the release need them. Classes and drivers are not, because they promise something
// that only the operator can know to be installed. The roles are required, the others optional
// (object.Need): an API server works without a storage class.
package builtin

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// Who the roles are for. Certificates of the cluster carry these names.
const (
	// APIServer is the user that the API server is to the kubelets.
	APIServer = "ironherd:apiserver"
	// Owners is the group of those who own the cluster.
	Owners = "ironherd:owners"
	// Provisioner is the user, and the group of users, of the storage provisioner on each node.
	Provisioner = "ironherd:csi-provisioner"
	// Network is the user, and the group of users, of the network services on each node.
	Network = "ironherd:network-services"
)

// Source is what the objects give as their source.
const Source = "built in"

// Part is one or more objects that are selected together.
type Part struct {
	// Name by which it is selected.
	Name string
	// Need of the release for its objects.
	Need object.Need
	// Needs names a part without which this one must not be selected; empty: none.
	Needs string

	objects func(Selection) []runtime.Object
}

// The names of the parts.
const (
	KubeletAPI        = "kubelet-api"
	OwnerAccess       = "owner"
	ProvisionerAccess = "csi-provisioner"
	NetworkAccess     = "network-services"
	Driver            = "csi-driver"
	ClassLocal        = "storage-class-local"
	ClassLocalStrict  = "storage-class-local-strict"
	RuntimeRunc       = "runtime-class-runc"
	RuntimeGVisor     = "runtime-class-gvisor"
)

// Parts returns all parts that there are, in the order in which people should see them.
func Parts() []Part {
	return []Part{
		{Name: KubeletAPI, Need: object.Required, objects: kubeletAPI.objects},
		{Name: OwnerAccess, Need: object.Required, objects: owner.objects},
		{Name: ProvisionerAccess, Need: object.Required, objects: provisioner.objects},
		{Name: NetworkAccess, Need: object.Required, objects: network.objects},
		{Name: Driver, Need: object.Optional, objects: csiDriver},
		{Name: ClassLocal, Need: object.Optional, Needs: Driver, objects: local},
		{Name: ClassLocalStrict, Need: object.Optional, Needs: Driver, objects: localStrict},
		{Name: RuntimeRunc, Need: object.Optional, objects: runc},
		{Name: RuntimeGVisor, Need: object.Optional, objects: gvisor},
	}
}

// Selection is which parts are wanted.
type Selection struct {
	// Names of the parts. Nil: the required ones.
	Names []string
	// DefaultClass is the StorageClass for claims that name none, "local" or "local-strict"; empty:
	// neither. It is only made the default while no other StorageClass is.
	DefaultClass string
	// Capacity tells the scheduler to ask how much is left on each node. A pod that waits for its
	// first volume is then placed only where somebody publishes CSIStorageCapacity objects.
	Capacity bool
}

// All names every part.
func All() []string {
	var names []string
	for _, part := range Parts() {
		names = append(names, part.Name)
	}
	return names
}

// names returns the parts that are selected.
func (s Selection) names() []string {
	if s.Names != nil {
		return s.Names
	}
	return Default()
}

// Default names the parts that are selected unless an operator chooses.
func Default() []string {
	var names []string
	for _, part := range Parts() {
		if part.Need == object.Required {
			names = append(names, part.Name)
		}
	}
	return names
}

// Validate reports the first fault.
func (s Selection) Validate() error {
	selected := s.names()
	for _, name := range selected {
		at := slices.IndexFunc(Parts(), func(p Part) bool { return p.Name == name })
		if at < 0 {
			return fmt.Errorf("there is no built-in part %q: choose from %s", name, strings.Join(All(), ", "))
		}
		if needs := Parts()[at].Needs; needs != "" && !slices.Contains(selected, needs) {
			return fmt.Errorf("the built-in part %s is for volumes of a driver that is not selected: select %s too, once the driver is installed", name, needs)
		}
	}
	switch class := s.DefaultClass; {
	case class == "":
	case class != localClass && class != localStrictClass:
		return fmt.Errorf("the default storage class can be %s or %s, not %q", localClass, localStrictClass, class)
	case !slices.Contains(selected, "storage-class-"+class):
		return fmt.Errorf("the default storage class %s is not selected: select storage-class-%s too", class, class)
	}
	if s.Capacity && !slices.Contains(selected, Driver) {
		return fmt.Errorf("storage capacity is a property of the driver, which is not selected: select %s too", Driver)
	}
	return nil
}

// Objects returns the objects of the parts that are selected. That of DefaultClass is marked as the
// default; WithoutDefault makes it one that is not.
func Objects(s Selection) ([]*object.Object, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	selected := s.names()
	var objects []*object.Object
	for _, part := range Parts() {
		if !slices.Contains(selected, part.Name) {
			continue
		}
		for _, typed := range part.objects(s) {
			o, err := convert(typed, part.Need)
			if err != nil {
				return nil, err
			}
			objects = append(objects, o)
		}
	}
	return objects, nil
}

// Keys returns the keys of every object of every part.
func Keys() (map[object.Key]bool, error) {
	objects, err := Objects(Selection{Names: All()})
	if err != nil {
		return nil, err
	}
	keys := map[object.Key]bool{}
	for _, o := range objects {
		keys[o.Key] = true
	}
	return keys, nil
}

func convert(typed runtime.Object, need object.Need) (*object.Object, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	if err != nil {
		return nil, fmt.Errorf("%T: %w", typed, err)
	}
	o, err := object.NewBuiltIn(content, Source, need)
	if err != nil {
		return nil, fmt.Errorf("%T: %w", typed, err)
	}
	return o, nil
}

// meta names an object and says what it is for.
func meta(name, description string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Annotations: map[string]string{object.Description: description}}
}
