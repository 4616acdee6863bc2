package reconciler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
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
	// is not. When people change the pauses during a Pass, the context of that Pass ends, and
	// another Pass begins with the new ones.
	SetPauses(pauses []Pause)
}

// Covers reports whether a pause is of an object: of everything, of its kind ("ConfigMap", or
// "Deployment.apps" with the group), or of the object itself ("ConfigMap default/settings",
// "ClusterRole ironherd:owner", with the group or without). Upper and lower case of a kind are the
// same, for no two kinds of a group differ in that alone; those of a name are not.
func (p Pause) Covers(group, kind, namespace, name string) bool {
	of, object, single := strings.Cut(p.Scope, " ")
	if strings.EqualFold(p.Scope, PauseAll) {
		return true
	}
	if !strings.EqualFold(of, kind) && !strings.EqualFold(of, kind+"."+group) {
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

// scopes is what a scope looks like: a kind, which may have a group, and perhaps the name of an
// object, which may have a namespace.
var scopes = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]*(\.[A-Za-z0-9.-]+)?( [^ /]+(/[^ /]+)?)?$`)

// CheckScope returns failure.Invalid unless the scope looks like one.
func (p Pause) CheckScope() error {
	if !scopes.MatchString(p.Scope) {
		return fleet.Errorf(fleet.KindInvalid, "%q can be no scope: write all, a kind (ConfigMap, Deployment.apps), or an object (ConfigMap default/settings)", p.Scope)
	}
	return nil
}

// sameScope reports whether two scopes are of the same objects.
func sameScope(a, b string) bool {
	kind, object, _ := strings.Cut(a, " ")
	otherKind, other, _ := strings.Cut(b, " ")
	return strings.EqualFold(kind, otherKind) && object == other
}

// SetPause stores a pause in place of one of the same scope. It ends by itself after the given
// time. At and Until are filled in.
func SetPause(ctx context.Context, client *clientv3.Client, layout etcd.Layout, p Pause, length time.Duration) error {
	if err := p.CheckScope(); err != nil {
		return err
	}
	switch {
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
	stored, err := etcd.Read(ctx, client, pauseRange(layout))
	if err != nil {
		return err
	}
	var ends []clientv3.Op
	for key, p := range pausesByKey(stored) {
		if sameScope(p.Scope, scope) {
			ends = append(ends, clientv3.OpDelete(key))
		}
	}
	if len(ends) == 0 {
		return fleet.Errorf(fleet.KindNotFound, "%s is not paused: `status` lists what is", scope)
	}
	if _, err := client.Txn(ctx).Then(ends...).Commit(); err != nil {
		return etcd.Failed(ctx, client, "resume "+scope, err)
	}
	return nil
}

func pauseKey(layout etcd.Layout, scope string) string {
	return layout.Pauses() + url.PathEscape(scope)
}

func pauseRange(layout etcd.Layout) etcd.Range { return etcd.Range{Key: layout.Pauses(), Prefix: true} }

// readPauses reads all pauses, linearizably, by scope.
func readPauses(ctx context.Context, client *clientv3.Client, layout etcd.Layout) ([]Pause, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	snapshot, err := etcd.Read(ctx, client, pauseRange(layout))
	if err != nil {
		return nil, err
	}
	return pausesOf(snapshot), nil
}

// pausesOf returns the pauses of a snapshot, by scope.
func pausesOf(snapshot etcd.Snapshot) (pauses []Pause) {
	byKey := pausesByKey(snapshot)
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		pauses = append(pauses, byKey[key])
	}
	return pauses
}

// pausesByKey decodes the pauses of a snapshot. One that cannot be read is of everything: somebody
// wanted something to be left alone.
func pausesByKey(snapshot etcd.Snapshot) map[string]Pause {
	pauses := map[string]Pause{}
	for key, entry := range snapshot.Entries {
		var p Pause
		if json.Unmarshal(entry.Value, &p) != nil || p.Scope == "" {
			p = Pause{Scope: PauseAll, By: "somebody", Reason: "the pause at " + key + " cannot be read: resume all removes it"}
		}
		pauses[key] = p
	}
	return pauses
}

// errPausesChanged ends a pass that was given pauses which no longer are what people want.
var errPausesChanged = errors.New("what is paused has changed")

// applyUnpaused runs a pass of the applier over what nobody has paused. When the pauses change
// meanwhile, it breaks the pass off and runs another one.
func (t *term) applyUnpaused(ctx context.Context) (Report, error) {
	if t.can.pauser == nil {
		return t.applier.Pass(ctx)
	}
	var before Report
	for {
		t.pausesChanged = nil
		read, err := etcd.Read(ctx, t.client, pauseRange(t.config.Layout))
		if err != nil {
			return before, fmt.Errorf("read what is paused: %w", err)
		}
		t.paused = read
		t.followPauses(ctx)
		t.can.pauser.SetPauses(pausesOf(read))
		report, err := t.passWhilePaused(ctx)
		report.add(before)
		if !errors.Is(err, errPausesChanged) || ctx.Err() != nil {
			return report, err
		}
		before = report
		t.logger.InfoContext(ctx, "a pass was broken off: what is paused has changed")
	}
}

// passWhilePaused runs a pass. Its error is errPausesChanged if it failed after the pauses had
// changed.
func (t *term) passWhilePaused(ctx context.Context) (Report, error) {
	bound, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	changed := t.pausesChanged
	go func() {
		select {
		case <-changed:
			cancel(errPausesChanged)
		case <-bound.Done():
		}
	}()
	report, err := t.applier.Pass(bound)
	if err != nil && errors.Is(context.Cause(bound), errPausesChanged) {
		err = errPausesChanged
	}
	return report, err
}

// followPauses makes pausesChanged a channel that is closed when the pauses are no longer those
// that the last pass was given. It is nil before the first pass, and after one that could not read
// them. Nobody closes it any more when ctx has ended, or after the next call.
func (t *term) followPauses(ctx context.Context) {
	if t.unfollow != nil {
		t.unfollow()
		t.unfollow = nil
	}
	if t.paused.Entries == nil {
		return
	}
	ctx, t.unfollow = context.WithCancel(ctx)
	changed, given := make(chan struct{}), t.paused
	t.pausesChanged = changed
	go func() {
		for now := range t.pauses.Watch(ctx) {
			if now.Revision > given.Revision && !maps.EqualFunc(now.Entries, given.Entries, sameEntry) {
				close(changed)
				return
			}
		}
	}()
}

func sameEntry(a, b etcd.Entry) bool { return a.Revision == b.Revision }
