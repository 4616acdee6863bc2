package reconciler

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/reconciler/etcd"
)

// Pause is a person's word that the reconciler leaves something alone for a while: it neither
// creates, changes nor deletes it. etcd removes it when its time is up.
type Pause struct {
	// Scope is what is left alone: PauseAll, a kind, or an object. See Covers.
	Scope string `json:"scope"`
	// By says who, and Reason why, for people.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason"`
	// At and Until are when, by the clock of who wrote it, for people. The end is a lease of etcd.
	At    time.Time `json:"at"`
	Until time.Time `json:"until"`
}

// PauseAll is the scope of everything.
const PauseAll = "all"

// MaxPause is the longest time for which a pause can hold: what is left alone for longer should not
// be wanted.
const MaxPause = 7 * 24 * time.Hour

// Pauser is an Applier that can leave objects alone.
type Pauser interface {
	// SetPauses is called before each Pass with all pauses that hold. An object that a pause covers
	// is left as it is. If API servers need it and it is not as wanted, that is a failure; else it
	// is not.
	SetPauses(pauses []Pause)
}

// Covers reports whether a pause is of an object: of everything, of its kind ("ConfigMap", or
// "Deployment.apps" with the group), or of the object itself ("ConfigMap default/settings",
// "ClusterRole ironherd:owner", with the group or without).
func (p Pause) Covers(group, kind, namespace, name string) bool {
	of, object, single := strings.Cut(p.Scope, " ")
	if p.Scope == PauseAll {
		return true
	}
	if of != kind && of != kind+"."+group {
		return false
	}
	if namespace != "" {
		name = namespace + "/" + name
	}
	return !single || object == name
}

// String is for people.
func (p Pause) String() string {
	return fmt.Sprintf("%s until %s, by %s: %s", p.Scope, p.Until.Format(time.RFC3339), p.By, p.Reason)
}

// SetPause stores a pause in place of one of the same scope. It ends by itself after the given
// time. At and Until are filled in.
func SetPause(ctx context.Context, client *clientv3.Client, layout etcd.Layout, p Pause, length time.Duration) error {
	words := strings.Fields(p.Scope)
	switch {
	case len(words) == 0 || len(words) > 2 || strings.Join(words, " ") != p.Scope:
		return fleet.Errorf(fleet.KindInvalid, "%q can be no scope: write all, a kind (ConfigMap, Deployment.apps), or an object (ConfigMap default/settings)", p.Scope)
	case p.Reason == "":
		return fleet.Errorf(fleet.KindInvalid, "the reason of a pause must be given, for whoever comes across it")
	case length < time.Second || length > MaxPause:
		return fleet.Errorf(fleet.KindInvalid, "a pause can hold from a second to %s, not %s", MaxPause, length)
	}
	p.At = time.Now().UTC().Truncate(time.Second)
	p.Until = p.At.Add(length)
	text, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode a pause: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	lease, err := client.Grant(ctx, int64(length.Seconds()))
	if err != nil {
		return etcd.Failed(ctx, client, "pause "+p.Scope, err)
	}
	if _, err := client.Put(ctx, pauseKey(layout, p.Scope), string(text), clientv3.WithLease(lease.ID)); err != nil {
		return etcd.Failed(ctx, client, "pause "+p.Scope, err)
	}
	return nil
}

// EndPause removes the pause of a scope. failure.NotFound when there is none.
func EndPause(ctx context.Context, client *clientv3.Client, layout etcd.Layout, scope string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := client.Delete(ctx, pauseKey(layout, scope))
	switch {
	case err != nil:
		return etcd.Failed(ctx, client, "resume "+scope, err)
	case answer.Deleted == 0:
		return fleet.Errorf(fleet.KindNotFound, "%s is not paused: `status` lists what is", scope)
	}
	return nil
}

func pauseKey(layout etcd.Layout, scope string) string {
	return layout.Pauses() + url.PathEscape(scope)
}

// readPauses reads all pauses, linearizably, by scope. One that cannot be read is of everything:
// somebody wanted something to be left alone.
func readPauses(ctx context.Context, client *clientv3.Client, layout etcd.Layout) ([]Pause, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	snapshot, err := etcd.Read(ctx, client, etcd.Range{Key: layout.Pauses(), Prefix: true})
	if err != nil {
		return nil, err
	}
	var pauses []Pause
	for _, key := range slices.Sorted(maps.Keys(snapshot.Entries)) {
		var p Pause
		if json.Unmarshal(snapshot.Entries[key].Value, &p) != nil || p.Scope == "" {
			p = Pause{Scope: PauseAll, By: "somebody", Reason: "the pause at " + key + " cannot be read: delete that key of etcd"}
		}
		pauses = append(pauses, p)
	}
	return pauses, nil
}
