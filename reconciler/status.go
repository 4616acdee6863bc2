package reconciler

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/reconciler/election"
	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/reconciler/gate"
)

const requestTimeout = 5 * time.Second

// statusView is the status at a revision.
type statusView struct {
	gate.Observed
	// At is the newest revision of etcd at which the status is known to have been so.
	At int64
}

func observe(value []byte, revision int64) gate.Observed {
	observed := gate.Observed{Found: true, Revision: revision}
	status, err := gate.ParseStatus(value)
	if err != nil {
		observed.Unreadable = err.Error()
		return observed
	}
	observed.Status = status
	return observed
}

// viewOf decodes the status from a snapshot of its key.
func viewOf(layout etcd.Layout, s etcd.Snapshot) statusView {
	entry, found := s.Entries[layout.Status()]
	if !found {
		return statusView{At: s.Revision}
	}
	return statusView{Observed: observe(entry.Value, entry.Revision), At: s.Revision}
}

// readStatus reads the status, linearizably.
func readStatus(ctx context.Context, client *clientv3.Client, layout etcd.Layout) (statusView, error) {
	snapshot, err := etcd.Read(ctx, client, etcd.Range{Key: layout.Status()})
	if err != nil {
		return statusView{}, err
	}
	return viewOf(layout, snapshot), nil
}

// announcement is a write of the status. etcd accepts it only while what it was decided from is
// unchanged.
type announcement struct {
	status gate.Status
	// instead is the revision of the status that this one replaces; 0 if there is none.
	instead int64
	// guarded tells that no node may have changed since the revision nodes.
	guarded bool
	nodes   int64
}

// announce writes the status in one transaction, on condition that l still leads, that the status
// is the one that was read and, if guarded, that no node has changed. It returns the revision of
// the write. If l no longer leads, the error is election.ErrDeposed; if another condition does not
// hold, it is failure.Conflict. After any other error the status may have been written or not.
func announce(ctx context.Context, client *clientv3.Client, layout etcd.Layout, l *election.Leadership, a announcement) (int64, error) {
	text, err := a.status.Encode()
	if err != nil {
		return 0, err
	}
	conditions := append(l.Conditions(), clientv3.Compare(clientv3.ModRevision(layout.Status()), "=", a.instead))
	if a.guarded {
		conditions = append(conditions, layout.Nodes().Unchanged(a.nodes))
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	done, err := client.Txn(ctx).If(conditions...).Then(clientv3.OpPut(layout.Status(), string(text))).
		Else(clientv3.OpTxn(l.Conditions(), nil, nil)).Commit()
	switch {
	case err != nil:
		return 0, fmt.Errorf("announce the status %q: %w", a.status, err)
	case done.Succeeded:
		return done.Header.GetRevision(), nil
	case !done.Responses[0].GetResponseTxn().GetSucceeded():
		l.Depose()
		return 0, election.ErrDeposed
	}
	return 0, fleet.Errorf(fleet.KindConflict, "announce the status %q: the status or a node has changed meanwhile", a.status)
}
