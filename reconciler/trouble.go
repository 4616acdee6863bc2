package reconciler

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
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
	maxTroubleText  = 1 << 10
	troubleInterval = 5 * time.Second
)

// troubleWriter keeps the trouble of a leadership in etcd. It writes when something in it changes,
// at most every troubleInterval. It deletes the key when a pass succeeds, or when the leader holds:
// then no pass fails, and what an earlier leader has left is no longer so. Nothing is decided from
// the key, so it does not retry a write that fails.
type troubleWriter struct {
	since, written time.Time
	text           string // what etcd is known to have
	clear          bool   // etcd is known to have none
}

// passEnded updates the trouble after a pass that ended with err.
func (w *troubleWriter) passEnded(ctx context.Context, t *term, report Report, err error) {
	if err == nil {
		w.none(ctx, t)
		return
	}
	now := time.Now()
	if w.since.IsZero() {
		w.since = now
	}
	if now.Sub(w.written) < troubleInterval {
		return
	}
	trouble := Trouble{Node: t.config.Node, Since: w.since.UTC(), Error: clip(err.Error()), Blocks: !report.Ready, Failures: slices.Clone(report.Failures)}
	slices.SortStableFunc(trouble.Failures, func(a, b Failure) int { return order(b.Required) - order(a.Required) })
	trouble.Failures = trouble.Failures[:min(len(trouble.Failures), maxFailures)]
	for i, f := range trouble.Failures {
		trouble.Failures[i].Object, trouble.Failures[i].Reason = clip(f.Object), clip(f.Reason)
	}
	text, encodeErr := json.Marshal(trouble)
	if encodeErr != nil || string(text) == w.text {
		return
	}
	w.text, w.clear = "", false // what etcd has is not known if no answer comes
	if t.putIfLeading(ctx, clientv3.OpPut(t.config.Layout.Trouble(), string(text))) {
		w.text, w.written = string(text), now
	}
}

// none tells that there is no trouble.
func (w *troubleWriter) none(ctx context.Context, t *term) {
	if w.clear {
		return
	}
	w.text = ""
	if t.putIfLeading(ctx, clientv3.OpDelete(t.config.Layout.Trouble())) {
		*w = troubleWriter{clear: true}
	}
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

func (t *term) putIfLeading(ctx context.Context, op clientv3.Op) bool {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	done, err := t.client.Txn(ctx).If(t.leadership.Conditions()...).Then(op).Commit()
	if err != nil {
		t.logger.WarnContext(ctx, "cannot tell others how passes end", slog.Any("err", err))
	}
	return err == nil && done.Succeeded
}
