package gate_test

import (
	"fmt"
	"strings"

	"github.com/ironherd/ironherd/reconciler/gate"
	"github.com/ironherd/ironherd/reconciler/release"
)

// A leader of a new release, whose base resources do not admit API servers of the old one, while a
// node still runs that.
func Example() {
	older, newer := release.MustParse("v1.2.0"), release.MustParse("v1.3.0")
	ours := release.Build{Release: newer, MinReconciler: older, MinAPIServer: newer}
	status, err := gate.ParseStatus([]byte(`{"state":"done","version":"v1.2.0","minimumCompatible":"v1.2.0"}`))
	if err != nil {
		panic(err)
	}
	observed := gate.Observed{Found: true, Status: status, Revision: 17}
	nodes := gate.Nodes{Known: []gate.Node{{Name: "control-1", Release: newer}, {Name: "control-2", Release: older}}}
	fmt.Println(gate.Campaign(newer, nodes).OK)
	plan := gate.Decide(ours, observed, nodes)
	fmt.Println(plan.Hold, strings.NewReplacer(", our", ",\nour", "; ", ";\n").Replace(plan.Reason))

	nodes.Known[1].Release = newer
	plan = gate.Decide(ours, observed, nodes)
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
