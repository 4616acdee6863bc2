package reconciler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/reconciler/etcd"
)

// TestDeletionsAreTold: what finalizers hold is told on every node, is no trouble, and is not
// written in each pass.
func TestDeletionsAreTold(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	b := build("v1.0.0", "v1.0.0", "v1.0.0")
	var r resources
	for n := range maxFailures + 5 {
		r.deleting = append(r.deleting, Deletion{
			Object: fmt.Sprint("Thing ", n, strings.Repeat("ü", 1<<16)), Since: time.Unix(1800000000, 0).UTC(),
			Finalizers: strings.Split("example.com/x"+strings.Repeat(",y", 1000), ","),
		})
	}
	start(t, client, Config{Node: "n1", Build: b, Layout: layout, FullPass: 10 * time.Millisecond}, &r)
	written := func() int64 {
		t.Helper()
		read, err := etcd.Read(t.Context(), client, etcd.Range{Key: layout.Deletions()})
		if err != nil {
			t.Fatal(err)
		}
		return read.Entries[layout.Deletions()].Revision
	}
	eventually(t, "it is told", func() bool { return look(t, client, layout, b).Deletions != nil })
	o := look(t, client, layout, b)
	if d := o.Deletions; o.Trouble != nil || d.Node != "n1" || d.Count != maxFailures+5 || len(d.Objects) != maxFailures {
		t.Fatalf("the trouble is %+v; %d of %d are told by %s", o.Trouble, len(d.Objects), d.Count, d.Node)
	}
	if d := o.Deletions.Objects[0]; len(d.Object) > 2*maxTroubleText || len(d.Finalizers) != 11 ||
		!strings.HasPrefix(d.Why(), "its deletion began at 2027-01-15T08:00:00Z, and its finalizers hold it: example.com/x, y, ") {
		t.Errorf("%+v: %s", d, d.Why())
	}
	first := written()
	_, passes := r.now()
	eventually(t, "more passes", func() bool { _, now := r.now(); return now > passes+20 })
	if now := written(); now != first {
		t.Errorf("it is written again, at %d after %d", now, first)
	}
	r.set(func(r *resources) { r.deleting, r.unrecorded = nil, 7 })
	eventually(t, "what is no longer known to be created", func() bool {
		d := look(t, client, layout, b).Deletions
		return d != nil && d.Count == 0 && d.Objects != nil && d.Unrecorded == 7
	})
	r.set(func(r *resources) { r.unrecorded = 0 })
	eventually(t, "that it is over", func() bool { return look(t, client, layout, b).Deletions == nil })
}
