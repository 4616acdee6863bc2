package reconciler

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Deletion is an object that is no longer wanted, whose deletion has begun, and that is still there
// because finalizers hold it. That is no failure: who set them has something to do first.
type Deletion struct {
	// Object names it for people: kind, namespace/name.
	Object string `json:"object"`
	// Finalizers are those that hold it.
	Finalizers []string `json:"finalizers"`
	// Since is when its deletion began, by the clock of the API server.
	Since time.Time `json:"since"`
}

// Why says why the object is still there, and since when.
func (d Deletion) Why() string {
	return fmt.Sprintf("its deletion began at %s, and its finalizers hold it: %s", d.Since.UTC().Format(time.RFC3339), strings.Join(d.Finalizers, ", "))
}

// Deletions are those that a leader waits for, and those that there will not be. The leader keeps
// them in etcd, so that `status` shows them on every node.
type Deletions struct {
	// Node that leads.
	Node string `json:"node"`
	// Count is how many the leader waits for.
	Count int `json:"count"`
	// Objects are at most maxFailures of them.
	Objects []Deletion `json:"objects"`
	// Unrecorded is that of Report.
	Unrecorded int `json:"unrecorded,omitempty"`
}

// deletionWriter keeps the deletions that a leadership waits for in etcd, as a notice.
type deletionWriter struct {
	notice
}

// passEnded updates the deletions after a pass.
func (w *deletionWriter) passEnded(ctx context.Context, t *term, report Report) {
	all := report.Deleting
	if len(all) == 0 && report.Unrecorded == 0 {
		w.none(ctx, t)
		return
	}
	told := Deletions{Node: t.config.Node, Count: len(all), Objects: []Deletion{}, Unrecorded: report.Unrecorded}
	for _, d := range all[:min(len(all), maxFailures)] {
		told.Objects = append(told.Objects, Deletion{clip(d.Object), clipAll(d.Finalizers), d.Since})
	}
	if text, err := json.Marshal(told); err == nil {
		w.tell(ctx, t, string(text))
	}
}

// clipAll shortens each of some finalizers, and leaves out what is beyond the first few.
func clipAll(finalizers []string) []string {
	const most = 10
	all := make([]string, 0, most)
	for n, each := range finalizers {
		if n == most {
			return append(all, "…")
		}
		all = append(all, clip(each))
	}
	return all
}
