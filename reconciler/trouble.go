package reconciler

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// Trouble is why the leader's passes fail. The leader keeps it in etcd, so that `status` shows it
// on every node.
type Trouble struct {
	// Node that leads.
	Node string `json:"node"`
	// Since is when a pass failed first, by the clock of that node.
	Since time.Time `json:"since"`
	Error string    `json:"error"`
	// Blocks tells that API servers wait for it. Otherwise everything that they need is as wanted.
	Blocks bool `json:"blocks,omitempty"`
	// Failures are the objects that failed, at most maxFailures of them, those that block first.
	Failures []Failure `json:"failures,omitempty"`
}

const (
	maxFailures = 20
	// maxTroubleText is how many bytes of a text the trouble has. With maxFailures, all of it fits
	// into a value of etcd, whatever failed.
	maxTroubleText = 1 << 10
)

// troubleWriter keeps the trouble of a leadership in etcd, as a notice. There is none when a pass
// succeeds, or when the leader holds: then no pass fails, and what an earlier leader has left is no
// longer so.
type troubleWriter struct {
	notice
	since time.Time
}

// passEnded updates the trouble after a pass that ended with err.
func (w *troubleWriter) passEnded(ctx context.Context, t *term, report Report, err error) {
	if err == nil {
		w.none(ctx, t)
		return
	}
	if w.since.IsZero() {
		w.since = time.Now()
	}
	trouble := Trouble{Node: t.config.Node, Since: w.since.UTC(), Error: clip(err.Error()), Blocks: !report.Ready, Failures: slices.Clone(report.Failures)}
	slices.SortStableFunc(trouble.Failures, func(a, b Failure) int { return order(b.Required) - order(a.Required) })
	trouble.Failures = trouble.Failures[:min(len(trouble.Failures), maxFailures)]
	for i, f := range trouble.Failures {
		trouble.Failures[i].Object, trouble.Failures[i].Reason = clip(f.Object), clip(f.Reason)
	}
	if text, err := json.Marshal(trouble); err == nil {
		w.tell(ctx, t, string(text))
	}
}

// none tells that there is no trouble.
func (w *troubleWriter) none(ctx context.Context, t *term) {
	w.since = time.Time{}
	w.notice.none(ctx, t)
}

// clip shortens a text to maxTroubleText.
func clip(text string) string {
	if len(text) <= maxTroubleText {
		return text
	}
	return strings.ToValidUTF8(text[:maxTroubleText], "") + "…"
}

// order is 1 for true, so that it can be compared.
func order(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
