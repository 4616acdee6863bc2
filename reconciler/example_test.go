package reconciler_test

import (
	"fmt"
	"strings"

	"github.com/ironherd/ironherd/reconciler"
)

func mustParse(text string) reconciler.Release {
	r, err := reconciler.ParseRelease(text)
	if err != nil {
		panic(err)
	}
	return r
}

// A leader of a new release, whose base resources do not admit API servers of the old one, while a
// node still runs that.
func Example() {
	build := reconciler.Build{Release: mustParse("v1.3.0"), MinReconciler: mustParse("v1.2.0"), MinAPIServer: mustParse("v1.3.0")}
	status, err := reconciler.ParseStatus([]byte(`{"state":"done","version":"v1.2.0","minimumCompatible":"v1.2.0"}`))
	if err != nil {
		panic(err)
	}
	observed := reconciler.Observed{Found: true, Status: status, Revision: 17}
	nodes := reconciler.Nodes{Known: []reconciler.Node{
		{Name: "control-1", Release: mustParse("v1.3.0")}, {Name: "control-2", Release: mustParse("v1.2.0")},
	}}
	fmt.Println(reconciler.Campaign(build.Release, nodes).OK)
	plan := reconciler.Decide(build, observed, nodes)
	fmt.Println(plan.Hold, strings.NewReplacer(", our", ",\nour", "; ", ";\n").Replace(plan.Reason))

	nodes.Known[1].Release = mustParse("v1.3.0")
	plan = reconciler.Decide(build, observed, nodes)
	fmt.Println(plan.Before)
	fmt.Println(plan.After)
	// Output:
	// true
	// true the status admits API servers from v1.2.0 on,
	// our base resources only those from v1.3.0 on;
	// waiting for nodes older than v1.3.0: control-2 (v1.2.0)
	// working, version v1.2.0, minimum compatible release v1.3.0
	// done, version v1.3.0, minimum compatible release v1.3.0
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
