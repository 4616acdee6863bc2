// Package builtin is what the release itself wants in every cluster: one file per kind. Each object
// says in its description annotation what it is for, for whoever comes across it.
//
// Objects are written in full where a server would default a field that matters to us, so that a
// change of its default changes nothing, and left out where it is the server's business.
package builtin

import (
	"fmt"

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
	// Provisioner is the user of the storage provisioner on each node.
	Provisioner = "ironherd:csi-provisioner"
	// Network is the user of the network services on each node.
	Network = "ironherd:network-services"
)

// Source is what the objects give as their source.
const Source = "built in"

// Objects returns all of them.
func Objects() ([]*object.Object, error) {
	var typed []runtime.Object
	for _, o := range clusterRoles() {
		typed = append(typed, &o)
	}
	for _, o := range clusterRoleBindings() {
		typed = append(typed, &o)
	}
	for _, o := range storageClasses() {
		typed = append(typed, &o)
	}
	for _, o := range csiDrivers() {
		typed = append(typed, &o)
	}
	for _, o := range runtimeClasses() {
		typed = append(typed, &o)
	}
	objects := make([]*object.Object, 0, len(typed))
	for _, t := range typed {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(t)
		if err != nil {
			return nil, fmt.Errorf("%T: %w", t, err)
		}
		o, err := object.New(content, Source)
		if err != nil {
			return nil, fmt.Errorf("%T: %w", t, err)
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// meta names an object and says what it is for.
func meta(name, description string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Annotations: map[string]string{object.Description: description}}
}
