package reconciler

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Trouble is why the leader's passes fail. It is kept in etcd so that `status` tells it on every
// node.
type Trouble struct {
	// Node that leads.
	Node string `json:"node"`
	// Since is when a pass failed first, by the clock of that node.
	Since time.Time `json:"since"`
	Error string    `json:"error"`
	// Failures are the objects concerned; of many, some.
	Failures []Failure `json:"failures,omitempty"`
}

const (
	mostFailures = 20
	troublePace  = 5 * time.Second
)

// teller keeps the trouble of a leadership in etcd: written when its cause changes, not more often
// than now and then, and deleted when it is over. It decides nothing: what cannot be written is
// left.
type teller struct {
	since, wrote time.Time
	error        string
	clear        bool // it is known that there is none in etcd
}

// tell is called after each pass.
func (w *teller) tell(ctx context.Context, t *term, report Report, err error) {
	key := t.config.Layout.Trouble()
	now := time.Now()
	if err == nil {
		if !w.clear && t.putIfLeading(ctx, clientv3.OpDelete(key)) {
			*w = teller{clear: true}
		}
		return
	}
	if w.since.IsZero() {
		w.since = now
	}
	if err.Error() == w.error || now.Sub(w.wrote) < troublePace {
		return
	}
	trouble := Trouble{Node: t.config.Node, Since: w.since.UTC(), Error: err.Error(), Failures: report.Failures}
	trouble.Failures = trouble.Failures[:min(len(trouble.Failures), mostFailures)]
	text, encodeErr := json.Marshal(trouble)
	if encodeErr == nil && t.putIfLeading(ctx, clientv3.OpPut(key, string(text))) {
		w.error, w.wrote, w.clear = trouble.Error, now, false
	}
}

func (t *term) putIfLeading(ctx context.Context, op clientv3.Op) bool {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	done, err := t.client.Txn(ctx).If(t.leadership.Conditions()...).Then(op).Commit()
	if err != nil {
		t.logger.DebugContext(ctx, "cannot tell others how passes end", slog.Any("err", err))
	}
	return err == nil && done.Succeeded
}
