package reconciler_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/ironherd/ironherd/reconciler"
	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/reconciler/release"
)

// nothing is an Applier of a program that has no resources yet.
type nothing struct{}

func (nothing) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (nothing) Pass(context.Context) (reconciler.Report, error) {
	return reconciler.Report{Ready: true}, nil
}

func (nothing) Changed() <-chan struct{} { return nil }

// A program that has a supervision tree of its own serves the components of a service in it.
func ExampleService_Components() {
	client, err := etcd.Dial(context.Background(), etcd.Config{Endpoints: []string{"http://127.0.0.1:2379"}})
	if err != nil {
		panic(err)
	}
	defer func() { _ = client.Close() }()
	first := release.MustParse("v1.0.0")
	service, err := reconciler.NewService(reconciler.Config{
		Node: "control-1", Build: release.Build{Release: first, MinReconciler: first, MinAPIServer: first},
		Layout: etcd.Layout{Root: "/example"}, Logger: slog.New(slog.DiscardHandler),
	}, client, nothing{})
	if err != nil {
		panic(err)
	}
	for _, c := range service.Components() {
		fmt.Println(c.Name, c.Base)
	}
	// Output:
	// watch-nodes true
	// watch-status true
	// probe-api-server true
	// watch-releases false
	// elect false
	// watch-resources false
	// lead false
}

// What a service cannot do without is refused, and not found out by a panic later.
func ExampleNewService() {
	_, err := reconciler.NewService(reconciler.Config{Node: "control-1"}, nil, nil)
	fmt.Println(err)
	// Output:
	// a reconciler needs a logger: Config.Logger is nil
	// a reconciler needs a client of etcd: it is nil
	// a reconciler needs an applier: it is nil
}
