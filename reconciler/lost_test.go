package reconciler

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// losing is etcd of which the answer to a write of a key is lost. It calls lost instead.
type losing struct {
	clientv3.KV
	key  string
	lost func()
}

type losingTxn struct {
	clientv3.Txn
	*losing
	writes bool
}

func (l *losing) Txn(ctx context.Context) clientv3.Txn {
	return &losingTxn{Txn: l.KV.Txn(ctx), losing: l}
}

func (x *losingTxn) If(all ...clientv3.Cmp) clientv3.Txn {
	x.Txn = x.Txn.If(all...)
	return x
}

func (x *losingTxn) Then(all ...clientv3.Op) clientv3.Txn {
	for _, op := range all {
		x.writes = x.writes || op.IsPut() && string(op.KeyBytes()) == x.key
	}
	x.Txn = x.Txn.Then(all...)
	return x
}

func (x *losingTxn) Commit() (*clientv3.TxnResponse, error) {
	answer, err := x.Txn.Commit()
	if x.writes && err == nil {
		x.lost()
		return nil, errors.New("the answer is lost")
	}
	return answer, err
}

// TestLostAnswer: what a leader has told of, and is over by the next pass, is told no more, also
// where etcd stored it and the answer was lost.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	for what, begin := range map[string]func(*resources){
		"deletions": func(r *resources) { r.deleting = []Deletion{{Object: "Thing a", Finalizers: []string{"x"}}} },
		"trouble":   func(r *resources) { r.broken, r.optional = errors.New("broken"), true },
	} {
		client, layout := shared.Client(t), ownLayout()
		b := build("v1.0.0", "v1.0.0", "v1.0.0")
		var r resources
		key := map[string]string{"deletions": layout.Deletions(), "trouble": layout.Trouble()}[what]
		lost := make(chan struct{})
		client.KV = &losing{client.KV, key, func() {
			r.set(func(r *resources) { r.deleting, r.broken = nil, nil })
			close(lost)
		}}
		passed := func(n int) {
			_, before := r.now()
			eventually(t, what+": passes", func() bool { _, now := r.now(); return now > before+n })
		}
		start(t, client, Config{Node: "n1", Build: b, Layout: layout, FullPass: 10 * time.Millisecond}, &r)
		passed(2)
		r.set(begin)
		<-lost
		passed(5)
		if o := look(t, client, layout, b); o.Deletions != nil || o.Trouble != nil {
			t.Errorf("%s: %+v, %+v", what, o.Deletions, o.Trouble)
		}
	}
}
