package reconciler

import (
	"context"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// noticeInterval is the least time between two writes of a notice.
const noticeInterval = 5 * time.Second

// notice is a key of etcd with which a leader tells people something. The leader writes it when
// that changes, at most every noticeInterval: a change that comes sooner is written when that time
// is over, without another pass. The leader deletes it when there is nothing to tell. Nothing is
// decided from the key, so no write that fails is tried again before the next pass.
type notice struct {
	key     string
	written time.Time
	text    string // what etcd is known to have
	clear   bool   // etcd is known to have none
	// waiting is what is written when due receives; due is nil when nothing waits.
	waiting string
	due     <-chan time.Time
}

// tell writes a text, now or when it is due.
func (n *notice) tell(ctx context.Context, t *term, text string) {
	n.due = nil
	if text == n.text {
		return
	}
	now := time.Now()
	if early := noticeInterval - now.Sub(n.written); early > 0 {
		n.waiting, n.due = text, time.After(early)
		return
	}
	n.text, n.clear = "", false // what etcd has is not known if no answer comes
	if t.putIfLeading(ctx, clientv3.OpPut(n.key, text)) {
		n.written, n.text = now, text
	}
}

// none tells that there is nothing.
func (n *notice) none(ctx context.Context, t *term) {
	n.due = nil
	if n.clear {
		return
	}
	n.text = ""
	n.clear = t.putIfLeading(ctx, clientv3.OpDelete(n.key))
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
