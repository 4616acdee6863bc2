package reconciler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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

// Override is a person's word that objects are treated in another way for a while. etcd removes it
// when its time is up. Where a change of etcd's own leader has put that off, the leader of the
// reconcilers removes it.
type Override struct {
	Effect Effect `json:"effect"`
	// Scope is what is treated so: ScopeAll, a kind, or an object. See Covers.
	Scope string `json:"scope"`
	// By says who, and Reason why, for people.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason"`
	// At and Until are when, by the clock of who wrote it. The end is a lease of etcd.
	At    time.Time `json:"at"`
	Until time.Time `json:"until"`
}

// Effect is what an override does to the objects that it covers. An object can have both: then it
// is left alone.
type Effect string

const (
	// Pause has them left alone: they are neither created, changed nor deleted.
	Pause Effect = "pause"
	// Force has fields that other managers declare taken from these. Such a field is else a failure
	// that names the manager. What was taken stays taken when the override ends.
	Force Effect = "force"
)

// Past says what has been done to what has such an override, for people.
func (e Effect) Past() string {
	if e == Force {
		return "forced"
	}
	return "paused"
}

// ScopeAll is the scope of everything.
const ScopeAll = "all"

// MaxOverride is the longest time for which an override can hold. What holds for longer belongs
// into the manifests, or into the configuration.
const MaxOverride = 7 * 24 * time.Hour

// Overridable is an Applier that heeds overrides.
type Overridable interface {
	// SetOverrides is called before each Pass with all overrides that hold. An object that is paused
	// is left as it is. If API servers need it and it is not as wanted, that is a failure; else it
	// is not. When people change the overrides during a Pass, the context of that Pass ends, and
	// another Pass begins with the new ones.
	SetOverrides(overrides []Override)
}

// Covers reports whether an override is of an object: of everything, of its kind ("ConfigMap", or
// "Deployment.apps" with the group), or of the object itself ("ConfigMap default/settings",
// "ClusterRole ironherd:owner", with the group or without). Upper and lower case of a kind are the
// same, for no two kinds of a group differ in that alone; those of a name are not.
func (o Override) Covers(group, kind, namespace, name string) bool {
	of, object, single := strings.Cut(o.Scope, " ")
	if strings.EqualFold(o.Scope, ScopeAll) {
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
func (o Override) String() string {
	return fmt.Sprintf("%s until %s, by %s: %s", o.Scope, o.Until.Format(time.RFC3339), o.By, o.Reason)
}

// scopes is what a scope looks like: a kind, which may have a group, and perhaps the name of an
// object, which may have a namespace.
var scopes = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]*(\.[A-Za-z0-9.-]+)?( [^ /]+(/[^ /]+)?)?$`)

// CheckScope returns failure.Invalid unless the scope looks like one.
func (o Override) CheckScope() error {
	if !scopes.MatchString(o.Scope) {
		return fleet.Errorf(fleet.KindInvalid, "%q can be no scope: write all, a kind (ConfigMap, Deployment.apps), or an object (ConfigMap default/settings)", o.Scope)
	}
	return nil
}

// sameScope reports whether two scopes are of the same objects.
func sameScope(a, b string) bool {
	kind, object, _ := strings.Cut(a, " ")
	otherKind, other, _ := strings.Cut(b, " ")
	return strings.EqualFold(kind, otherKind) && object == other
}

// reach tells whether an override is of all that a scope is of, and whether it is of part of that.
// Where one of the two leaves the group out, the other may be of part of it.
func (o Override) reach(scope string) (whole, part bool) {
	if strings.EqualFold(o.Scope, ScopeAll) || strings.EqualFold(scope, ScopeAll) {
		return strings.EqualFold(o.Scope, ScopeAll), true
	}
	kind, object, _ := strings.Cut(o.Scope, " ")
	otherKind, other, _ := strings.Cut(scope, " ")
	kind, group, _ := strings.Cut(kind, ".")
	otherKind, otherGroup, _ := strings.Cut(otherKind, ".")
	if !strings.EqualFold(kind, otherKind) {
		return false, false
	}
	whole = (group == "" || strings.EqualFold(group, otherGroup)) && (object == "" || object == other)
	part = (group == "" || otherGroup == "" || strings.EqualFold(group, otherGroup)) && (object == "" || other == "" || object == other)
	return whole, part
}

// SetOverride stores an override in place of one with the same effect and scope, which it returns;
// nil: there was none. It ends by itself after the given time. At and Until are filled in.
// failure.Invalid for what can be no override.
func SetOverride(ctx context.Context, client *clientv3.Client, layout etcd.Layout, o Override, length time.Duration) (before *Override, err error) {
	if err := o.CheckScope(); err != nil {
		return nil, err
	}
	switch {
	case o.Effect != Pause && o.Effect != Force:
		return nil, fleet.Errorf(fleet.KindInvalid, "%q is no effect of an override: there are %s and %s", o.Effect, Pause, Force)
	case o.Reason == "":
		return nil, fleet.Errorf(fleet.KindInvalid, "the reason of a %s must be given, for whoever comes across it", o.Effect)
	case length < time.Second || length > MaxOverride:
		return nil, fleet.Errorf(fleet.KindInvalid, "a %s can hold from a second to %s, not %s", o.Effect, MaxOverride, length)
	}
	o.At = time.Now().UTC().Truncate(time.Second)
	o.Until = o.At.Add(length)
	held, err := putFor(ctx, client, overrideKey(layout, o), o, length, string(o.Effect)+" "+o.Scope)
	if err != nil || json.Unmarshal(held, &before) != nil || before == nil || longOver(before.Until) {
		return nil, err
	}
	return before, nil
}

// Rest is what else has an effect on what an override was of that has ended, by scope.
type Rest struct {
	// Whole are overrides of all of it, and Parts those that are of part of it.
	Whole, Parts []Override
}

// EndOverride removes the override with an effect and a scope. It returns which other ones have
// that effect on the same objects. failure.NotFound, with these, when there is none of that scope.
func EndOverride(ctx context.Context, client *clientv3.Client, layout etcd.Layout, effect Effect, scope string) (Rest, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	stored, err := etcd.Read(ctx, client, overrideRange(layout))
	if err != nil {
		return Rest{}, err
	}
	var ends []clientv3.Op
	var rest Rest
	for key, o := range overridesByKey(stored) {
		whole, part := o.reach(scope)
		switch {
		case o.Effect != effect || !part:
		case sameScope(o.Scope, scope):
			ends = append(ends, clientv3.OpDelete(key))
		case longOver(o.Until):
		case whole:
			rest.Whole = append(rest.Whole, o)
		default:
			rest.Parts = append(rest.Parts, o)
		}
	}
	for _, each := range [][]Override{rest.Whole, rest.Parts} {
		slices.SortFunc(each, func(a, b Override) int { return strings.Compare(a.Scope, b.Scope) })
	}
	switch {
	case len(ends) > 0:
	case len(rest.Whole) > 0:
		return rest, fleet.Errorf(fleet.KindNotFound, "%s has no %s of its own, but is %s by another one", scope, effect, effect.Past())
	case len(rest.Parts) > 0:
		return rest, fleet.Errorf(fleet.KindNotFound, "%s has no %s of its own, but these are %s", scope, effect, effect.Past())
	default:
		return rest, fleet.Errorf(fleet.KindNotFound, "%s is not %s: `status` lists what is", scope, effect.Past())
	}
	if _, err := client.Txn(ctx).Then(ends...).Commit(); err != nil {
		return rest, etcd.Failed(ctx, client, "end the "+string(effect)+" of "+scope, err)
	}
	return rest, nil
}

func overrideKey(layout etcd.Layout, o Override) string {
	return layout.Overrides() + string(o.Effect) + "/" + url.PathEscape(o.Scope)
}

func overrideRange(layout etcd.Layout) etcd.Range {
	return etcd.Range{Key: layout.Overrides(), Prefix: true}
}

// readOverrides reads all overrides that hold, linearizably, by effect and scope.
func readOverrides(ctx context.Context, client *clientv3.Client, layout etcd.Layout) ([]Override, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	snapshot, err := etcd.Read(ctx, client, overrideRange(layout))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(overridesOf(snapshot), func(o Override) bool { return longOver(o.Until) }), nil
}

// overridesOf returns the overrides of a snapshot, by effect and scope.
func overridesOf(snapshot etcd.Snapshot) (overrides []Override) {
	byKey := overridesByKey(snapshot)
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		overrides = append(overrides, byKey[key])
	}
	return overrides
}

// overridesByKey decodes the overrides of a snapshot. One that cannot be read, or whose effect this
// release does not know, pauses everything: somebody wanted something not to happen as it would.
func overridesByKey(snapshot etcd.Snapshot) map[string]Override {
	overrides := map[string]Override{}
	for key, entry := range snapshot.Entries {
		var o Override
		if json.Unmarshal(entry.Value, &o) != nil || o.Scope == "" || o.Effect != Pause && o.Effect != Force {
			o = Override{Effect: Pause, Scope: ScopeAll, By: "somebody", Reason: "the override at " + key + " cannot be read: resume all removes it"}
		}
		overrides[key] = o
	}
	return overrides
}

// errOverridesChanged ends a pass that was given overrides which no longer are what people want.
var errOverridesChanged = errors.New("the overrides have changed")

// applyOverridden runs a pass of the applier with the overrides that hold. When they change
// meanwhile, it breaks the pass off and runs another one.
func (t *term) applyOverridden(ctx context.Context) (Report, error) {
	if t.checkProbe(ctx) != nil || t.mayNotAsk || !t.sameKnown() { // of another cluster?
		if err := t.sameCluster(ctx); err != nil && !t.sameKnown() {
			t.overridesChanged = nil // nobody has read them
			return Report{}, err
		}
	}
	if t.can.overridable == nil {
		return t.applier.Pass(ctx)
	}
	var before Report
	for {
		t.overridesChanged = nil
		read, err := t.endOverrides(ctx)
		if err != nil {
			return before, fmt.Errorf("read the overrides: %w", err)
		}
		t.given = read
		t.followOverrides(ctx)
		t.can.overridable.SetOverrides(overridesOf(read))
		report, err := t.passWhileTheyHold(ctx)
		report.add(before)
		if !errors.Is(err, errOverridesChanged) || ctx.Err() != nil {
			return report, err
		}
		before = report
		t.logger.InfoContext(ctx, "a pass was broken off: the overrides have changed")
	}
}

// endOverrides reads the overrides. It removes those whose time is up although etcd still has them.
func (t *term) endOverrides(ctx context.Context) (etcd.Snapshot, error) {
	for {
		read, err := etcd.Read(ctx, t.client, overrideRange(t.config.Layout))
		if err != nil {
			return read, err
		}
		t.sightings.see(read)
		var ends []clientv3.Op
		for key, o := range overridesByKey(read) {
			if t.sightings.over(key, o.At, o.Until) {
				ends = append(ends, clientv3.OpDelete(key))
				t.logger.InfoContext(ctx, "an override is over, and etcd still has it: removed", slog.String("effect", string(o.Effect)), slog.String("override", o.String()))
			}
		}
		if len(ends) == 0 {
			return read, nil
		}
		conditions := append(t.leadership.Conditions(), overrideRange(t.config.Layout).Unchanged(read.Revision))
		asking, cancel := context.WithTimeout(ctx, requestTimeout)
		done, err := t.client.Txn(asking).If(conditions...).Then(ends...).Commit()
		cancel()
		switch {
		case err != nil:
			return read, etcd.Failed(ctx, t.client, "end overrides", err)
		case !done.Succeeded && ctx.Err() == nil: // somebody else has written one, or leads
			sleep(ctx, conflictPause)
		}
		if ctx.Err() != nil {
			return read, context.Cause(ctx)
		}
	}
}

// passWhileTheyHold runs a pass. Its error is errOverridesChanged if it failed after the overrides
// had changed.
func (t *term) passWhileTheyHold(ctx context.Context) (Report, error) {
	bound, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	changed := t.overridesChanged
	go func() {
		select {
		case <-changed:
			cancel(errOverridesChanged)
		case <-bound.Done():
		}
	}()
	report, err := t.applier.Pass(bound)
	if err != nil && errors.Is(context.Cause(bound), errOverridesChanged) {
		err = errOverridesChanged
	}
	return report, err
}

// followOverrides makes overridesChanged a channel that is closed when the overrides are no longer
// those that the last pass was given. It is nil before the first pass, and after one that could not
// read them. Nobody closes it any more when ctx has ended, or after the next call.
func (t *term) followOverrides(ctx context.Context) {
	if t.unfollow != nil {
		t.unfollow()
		t.unfollow = nil
	}
	if t.given.Entries == nil {
		return
	}
	ctx, t.unfollow = context.WithCancel(ctx)
	changed, given := make(chan struct{}), t.given
	t.overridesChanged = changed
	go func() {
		for now := range t.overrides.Watch(ctx) {
			if now.Revision > given.Revision && !maps.EqualFunc(now.Entries, given.Entries, sameEntry) {
				close(changed)
				return
			}
		}
	}()
}

func sameEntry(a, b etcd.Entry) bool { return a.Revision == b.Revision }
