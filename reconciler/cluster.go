package reconciler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/reconciler/election"
	"github.com/ironherd/ironherd/reconciler/etcd"
)

// Identifier is an Applier that can tell which cluster its API server is of. With one, nothing is
// announced or changed by a node whose API server is of another cluster than the keys in etcd. If
// it is a Prober, too, such a leader hands over to a candidate where they match.
type Identifier interface {
	// Cluster asks the API server for the UID of the namespace kube-system, which is there for as
	// long as the cluster is. The error wraps ErrMayNotAsk where the API server says that our user has
	// no right to that.
	Cluster(ctx context.Context) (string, error)
}

var errOtherCluster = fleet.Errorf(fleet.KindInvalid, "etcd and this node's API server are of two Kubernetes clusters")

// ErrMayNotAsk is why an Identifier does not tell its cluster where the API server forbids it.
var ErrMayNotAsk = errors.New("our user may not ask")

// errNobodyKnows tells a leader that it may not ask the API server, and that the keys in etcd are
// of no cluster yet. So it is after an upgrade until somebody gives our user the right to ask.
var errNobodyKnows = errors.New("nobody has said yet which cluster etcd is of")

// CheckCluster returns failure.Invalid if the keys in etcd are of another cluster than the API
// server. They may be of none yet. Any other error tells that this could not be found out.
func CheckCluster(ctx context.Context, client *clientv3.Client, layout etcd.Layout, server Identifier) error {
	return checkCluster(ctx, client, layout, server, nil)
}

// checkCluster is CheckCluster. If the keys are of no cluster yet, the leader l makes them keys of
// its API server's cluster, on condition that it still leads, or returns errNobodyKnows. It may be
// nil.
func checkCluster(ctx context.Context, client *clientv3.Client, layout etcd.Layout, server Identifier, l *election.Leadership) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	key := layout.Cluster()
	own, err := server.Cluster(ctx)
	if l != nil && errors.Is(err, ErrMayNotAsk) {
		if kept, readErr := client.Get(ctx, key); readErr == nil && len(kept.Kvs) == 0 {
			return fmt.Errorf("%w: %w", errNobodyKnows, err)
		}
	}
	if err != nil {
		return err
	}
	read := clientv3.OpGet(key)
	request := client.Txn(ctx).Then(read)
	if l != nil {
		free := append(l.Conditions(), clientv3.Compare(clientv3.CreateRevision(key), "=", 0))
		request = client.Txn(ctx).If(free...).Then(clientv3.OpPut(key, own), read).Else(read)
	}
	done, err := request.Commit()
	if err != nil {
		return fmt.Errorf("ask which cluster the keys in etcd are of: %w", err)
	}
	found := done.Responses[len(done.Responses)-1].GetResponseRange().GetKvs()
	switch {
	case len(found) == 0 && l != nil:
		l.Depose()
		return election.ErrDeposed
	case len(found) == 0:
		return nil
	}
	kept := strings.TrimSpace(string(found[0].Value)) // a person may have written it
	if kept == own {
		return nil
	}
	return fmt.Errorf("%w, and nothing is changed: kube-system has the UID %s in the API server, and %s in the key %s of etcd; "+
		"correct the kubeconfig or the etcd endpoints of this node, or, if the cluster was made anew, put its UID into the key",
		errOtherCluster, own, kept, key)
}

// probeCluster returns errOtherCluster if etcd and the API server of this node are of two clusters.
// If that cannot be found out now, it returns what was known before.
func (s *Service) probeCluster(ctx context.Context) error {
	if s.can.identifier == nil {
		return nil
	}
	return s.compared(CheckCluster(ctx, s.client, s.config.Layout, s.can.identifier))
}

// compared keeps whether etcd and the API server are of one cluster, unless err tells that this
// could not be found out. It returns errOtherCluster if they are not, as far as is known then.
func (s *Service) compared(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil || errors.Is(err, errOtherCluster) {
		s.same, s.other = err == nil, err
	}
	return s.other
}

// sameKnown reports whether etcd and the API server were of one cluster when both told it last.
func (s *Service) sameKnown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.same
}

// awaitCluster returns when etcd and the API server are known to be of one cluster, or ctx has
// ended. No plan is carried out in a term before. Each attempt that does not find that out counts
// as a pass that failed. It returns errStatusChanged when the status is not the one any more from
// which the plan was made.
func (t *term) awaitCluster(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	turns, retry := t.turns(ctx), t.retries()
	t.overridesChanged = nil // no pass has them
	var failures failureLog
	for {
		begun := time.Now()
		err := t.sameCluster(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		t.config.Observer.PassEnded(Report{}, time.Since(begun), err)
		t.troubleWriter.passEnded(ctx, t, Report{}, err)
		t.setState(func(state *State) { state.PassedAt, state.PassError, state.PassReady = time.Now(), err.Error(), false })
		pause := retry.NextBackOff()
		failures.failed(ctx, t.logger, err, pause)
		if err := turns.await(ctx, t, pause); err != nil {
			return err
		}
	}
}

// sameCluster asks whether etcd and the API server are of one cluster: nil. That we may not ask is
// nil, too; then each pass asks again.
func (t *term) sameCluster(ctx context.Context) (err error) {
	if t.can.identifier != nil {
		err = checkCluster(ctx, t.client, t.config.Layout, t.can.identifier, t.leadership)
	}
	switch {
	case errors.Is(err, errNobodyKnows):
		if !t.mayNotAsk {
			t.logger.WarnContext(ctx, "going on without knowing whether etcd and the API server are of one cluster", slog.Any("err", err))
		}
		t.mayNotAsk, err = true, nil
	case err == nil:
		t.mayNotAsk = false
	}
	_ = t.compared(err)
	return err
}
