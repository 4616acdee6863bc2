package reconciler

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/reconciler/node"
)

// planner tells in a plan what it was told.
type planner struct {
	*sourced
	paused
}

func (p *planner) Plan(ctx context.Context) (d Diff, err error) {
	select {
	case overrides := <-p.told:
		for _, each := range overrides {
			d.Changes = append(d.Changes, Change{Object: each.Scope, Held: each.Reason})
		}
	default:
	}
	c, err := p.ask(ctx, node.Source{Digest: "d1", Objects: 2})
	if !c.Approved {
		d.Failures = []Failure{{Reason: c.Agreed.Reason}}
	}
	return d, err
}

// TestPlanAsksEtcd: a plan knows what is paused and approved, and what other nodes have, as a pass
// of a leader does; and writes nothing.
func TestPlanAsksEtcd(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	config := Config{Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Layout: layout, Logger: quiet(t)}
	for name, digest := range map[string]string{"n1": "d1", "n2": "d2"} {
		record := `{"roles":["kubernetes-controller"],"release":"v1.0.0","source":{"digest":"` + digest + `","objects":2}}`
		if _, err := client.Put(t.Context(), layout.Node(name), record); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := SetOverride(t.Context(), client, layout, Override{Effect: Pause, Scope: "Secret", Reason: "an incident"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	plan := func() Diff {
		t.Helper()
		d, err := Plan(t.Context(), config, client, &planner{sourced: &sourced{}, paused: paused{told: make(chan []Override, 1)}})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := plan(); len(d.Changes) != 1 || d.Changes[0].Held != "an incident" || len(d.Failures) != 1 || !strings.Contains(d.Failures[0].Reason, "n2 (d2, 2 objects)") {
		t.Errorf("%+v", d)
	}
	if err := Approve(t.Context(), client, layout, Approval{Digest: "d1", Reason: "why"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	stored := func() string {
		t.Helper()
		answer, err := client.Get(t.Context(), layout.Root+"/", clientv3.WithPrefix())
		if err != nil || answer.Count != 4 {
			t.Fatalf("%v, %v", answer, err)
		}
		return fmt.Sprint(answer.Kvs)
	}
	before := stored()
	if d := plan(); len(d.Failures) != 0 {
		t.Errorf("approved: %+v", d)
	}
	if after := stored(); after != before {
		t.Errorf("a plan wrote to etcd: %s, %s", before, after)
	}
}
