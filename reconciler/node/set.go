package node

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/reconciler/gate"
)

// Node is what is known of one node.
type Node struct {
	Name string `json:"name"`
	Record
	// Known tells that Record is what the node says, or said last.
	Known bool `json:"known"`
	// Fault is why the node's record cannot be read; empty if it can.
	Fault string `json:"fault,omitempty"`
}

// Counts reports whether the gate has to count the node: it is a controller, or may be one.
func (n Node) Counts() bool { return !n.Known || n.Controller() }

// Set is the nodes at a revision, by name. It is shared: nobody may change it.
type Set struct {
	Nodes []Node
	// Revision of the last change that is applied; etcd.Range.Unchanged makes a write conditional on
	// it.
	Revision int64
}

// Gate returns the set in the form that package gate decides from.
func (s Set) Gate() gate.Nodes {
	nodes := gate.Nodes{Revision: s.Revision}
	for _, n := range s.Nodes {
		switch {
		case !n.Counts():
		case n.Known:
			nodes.Known = append(nodes.Known, gate.Node{Name: n.Name, Release: n.Release})
		default:
			nodes.Unknown = append(nodes.Unknown, n.Name)
		}
	}
	return nodes
}

// reader decodes snapshots into sets. It remembers the last record of each node that it could read.
type reader struct {
	client *clientv3.Client
	prefix string
	logger *slog.Logger
	known  map[string]Record
	faulty map[string]string // the last fault that was logged, by node
}

func (r *reader) read(ctx context.Context, snapshot etcd.Snapshot) Set {
	set := Set{Revision: snapshot.Revision}
	known, faulty := map[string]Record{}, map[string]string{}
	for key, entry := range snapshot.Entries {
		n := r.node(ctx, key, entry)
		if n.Known {
			known[n.Name] = n.Record
		}
		if n.Fault != "" {
			faulty[n.Name] = n.Fault
			if r.faulty[n.Name] != n.Fault {
				r.logger.ErrorContext(ctx, "the record of a node cannot be read", slog.String("node", n.Name), slog.String("err", n.Fault),
					slog.Bool("known", n.Known), slog.String("release", n.Release.String()))
			}
		}
		set.Nodes = append(set.Nodes, n)
	}
	r.known, r.faulty = known, faulty
	slices.SortFunc(set.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return set
}

func (r *reader) node(ctx context.Context, key string, entry etcd.Entry) Node {
	n := Node{Name: strings.TrimPrefix(key, r.prefix), Known: true}
	var err error
	if n.Record, err = Parse(entry.Value); err == nil {
		return n
	}
	n.Fault = err.Error()
	if n.Record, n.Known = r.known[n.Name]; !n.Known {
		n.Record, n.Known = r.before(ctx, key, entry.Revision)
	}
	return n
}

// before returns the last readable record in etcd's history of the key. It looks no further back
// than etcd's compaction and the last removal of the record.
func (r *reader) before(ctx context.Context, key string, revision int64) (Record, bool) {
	const most = 16
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for range most {
		answer, err := r.client.Get(ctx, key, clientv3.WithRev(revision-1))
		if err != nil {
			if !errors.Is(err, rpctypes.ErrCompacted) {
				r.logger.WarnContext(ctx, "cannot read what the record of a node was before", slog.String("key", key), slog.Any("err", err))
			}
			return Record{}, false
		}
		if len(answer.Kvs) == 0 {
			return Record{}, false
		}
		if record, err := Parse(answer.Kvs[0].Value); err == nil {
			return record, true
		}
		revision = answer.Kvs[0].ModRevision
	}
	return Record{}, false
}
