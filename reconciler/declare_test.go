package reconciler

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironherd/ironherd/reconciler/node"
)

// counted counts how often the files of a node are read.
type counted struct {
	*sourced
	reads atomic.Int32
}

func (c *counted) Source(ctx context.Context) node.Source {
	c.reads.Add(1)
	return c.sourced.Source(ctx)
}

// TestFilesAreReadAtIntervals: that other nodes change, or that etcd is read anew, is no reason to
// read the files of this one. That its record no longer says what is in them is.
func TestFilesAreReadAtIntervals(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	var r resources
	c := &counted{sourced: &sourced{hand: r.hand("v1.0.0"), source: make(chan node.Source, 1)}}
	c.source <- node.Source{Digest: "d1", Objects: 2}
	startSourced(t, client, Config{Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Layout: layout, FullPass: time.Hour}, c)
	registry := node.NewRegistry(client, layout, quiet(t))
	declared := func() bool {
		set, err := registry.List(t.Context())
		return err == nil && len(set.Nodes) > 0 && set.Nodes[0].Name == "n1" && set.Nodes[0].Source != nil
	}
	const others = 20
	for n := range others {
		eventually(t, "it says what is in its files", declared)
		register(t, client, layout, fmt.Sprint("other-", n), "v1.0.0")
		if n%10 != 0 {
			continue
		}
		if _, err := client.Put(t.Context(), layout.Node("n1"), `{"roles":["kubernetes-controller"],"release":"v1.0.0"}`); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "it says so again", declared)
	if reads := c.reads.Load(); reads > others/2 {
		t.Errorf("its files were read %d times", reads)
	}
}
