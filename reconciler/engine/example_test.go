package engine_test

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/ironherd/ironherd/reconciler/engine"
)

// Everything that is wrong with the objects is told at once, before anything is asked of the
// server.
func ExampleNew() {
	object := func(name any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": "default"},
		}}
	}
	_, err := engine.New(&rest.Config{Host: "https://192.0.2.11:6443"}, engine.Options{
		Objects: []*unstructured.Unstructured{object("good"), object(false), nil},
	})
	fmt.Println(err)
	e, err := engine.New(&rest.Config{Host: "https://192.0.2.11:6443"}, engine.Options{Objects: []*unstructured.Unstructured{object("good")}})
	if err == nil {
		defer e.Close()
	}
	fmt.Println(err)
	// Output:
	// object 1: ConfigMap: metadata.name must be text, not false: quote it
	// object 2 is nil
	// <nil>
}

// A program without etcd, and alone with its cluster, calls Run and Pass itself.
func ExampleEngine_Pass() {
	ctx := context.Background()
	e, err := engine.New(&rest.Config{Host: "https://192.0.2.11:6443"}, engine.Options{Manifests: "/etc/example/manifests"})
	if err != nil {
		panic(err)
	}
	defer e.Close()
	go func() { _ = e.Run(ctx) }() // watches what there is
	for {
		report, err := e.Pass(ctx)
		fmt.Println(report.Created, report.Updated, report.Pruned, err)
		select {
		case <-e.Changed(): // something has drifted, or an object that failed is due again
		case <-time.After(time.Minute): // the manifests may have changed
		}
	}
}
