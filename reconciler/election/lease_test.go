package election

import (
	"log/slog"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/reconciler/etcdtest"
	"github.com/ironherd/ironherd/reconciler/etcd"
)

// TestTrustCountsFromTheStartOfARenewal: the answers of etcd come late. What is left of the trust
// window must never be more than the window without that delay, because etcd may have counted from
// the moment at which the renewal was sent.
func TestTrustCountsFromTheStartOfARenewal(t *testing.T) {
	t.Parallel()
	const ttl, delay = 6 * time.Second, 800 * time.Millisecond
	cluster := etcdtest.New(t, 1)
	link := etcdtest.NewLink(t, cluster.Endpoints()[0])
	client, err := etcd.Dial(t.Context(), etcd.Config{Endpoints: []string{link.URL()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	if _, err := client.Get(t.Context(), "x"); err != nil { // it is connected
		t.Fatal(err)
	}
	link.Delay(delay)
	defer link.Delay(0)
	// A machine that is busy may lose the lease before it was renewed twice; then it takes another.
	for !renewedTwice(t, client, ttl, delay) {
		t.Log("the lease was lost; another one is taken")
	}
}

// renewedTwice takes a lease and checks what is left of it, until it was renewed twice; false: it
// was lost before.
func renewedTwice(t *testing.T, client *clientv3.Client, ttl, delay time.Duration) bool {
	t.Helper()
	l, err := grant(t.Context(), client, ttl, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		l.window.Close(ErrResigned)
		l.running.Wait()
	}()
	length := ttl - ttl/5
	if left := l.window.Left(); left > length-delay {
		t.Errorf("after the grant %s are left of %s", left, length)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	renewals, last := 0, l.window.Left()
	for renewals < 2 {
		select {
		case <-tick.C:
		case <-l.window.Done():
			return false
		}
		left := l.window.Left()
		if left > last {
			renewals++
			if left > length-delay {
				t.Errorf("after a renewal whose answer took %s, %s are left of %s", delay, left, length)
			}
		}
		last = left
	}
	return true
}
