package resources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/reconciler/resources/builtin"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
	"github.com/ironherd/ironherd/reconciler/gate"
	"github.com/ironherd/ironherd/reconciler/node"
)

func wish(t *testing.T, name string, need object.Need) *object.Object {
	t.Helper()
	o, err := object.NewBuiltIn(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": "default"},
	}, "test", need)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestRefusal: how many objects may go at once, and who must agree.
func TestRefusal(t *testing.T) {
	t.Parallel()
	agreed, differs := reconciler.Consent{Agreed: gate.Verdict{OK: true}}, reconciler.Consent{Agreed: gate.Verdict{Reason: "n2 has others"}}
	approved := reconciler.Consent{Approved: true}
	for _, c := range []struct {
		what          string
		most          int
		kept, lost    int
		uncreated     int
		consent       reconciler.Consent
		asking        error
		want, wantNot string
	}{
		{what: "nothing is lost", kept: 3, consent: differs},
		{what: "the only one", lost: 1, consent: agreed, want: "1 of the 1 objects"},
		{what: "the half", kept: 1, lost: 1, consent: agreed},
		{what: "more than the half", kept: 10, lost: 11, consent: agreed, want: "11 of the 21 objects that were created from manifests are no longer in them, which is more than half"},
		{what: "as many as a limit allows", most: 3, kept: 97, lost: 3, consent: agreed},
		{what: "more than a limit allows", most: 3, kept: 96, lost: 4, consent: agreed, want: "more than max_prune allows (3)"},
		{what: "a limit is no licence", most: 99, lost: 5, consent: agreed, want: "more than half"},
		{what: "what was never created makes the half no larger", kept: 1, uncreated: 9, lost: 2, consent: agreed, want: "2 of the 3 objects"},
		{what: "all three", most: 3, kept: 1, lost: 5, consent: differs, want: "5 of the 6 objects that were created from manifests are no longer in them, " +
			"which is more than max_prune allows (3) and more than half, but n2 has others: none is deleted until that changes"},
		{what: "others have other manifests", kept: 9, lost: 1, consent: differs, want: "but n2 has others"},
		{what: "others cannot be asked", kept: 9, lost: 1, consent: approved, asking: errors.New("no etcd"), want: "cannot be asked whether they have the same manifests: no etcd"},
		{what: "a person's word", most: 1, lost: 30, consent: approved},
	} {
		want := &wanted{byKey: map[object.Key]*object.Object{}}
		entries := map[object.Key]inventory.Entry{}
		for n := range c.kept {
			o := wish(t, fmt.Sprint("kept-", n), object.Nobody)
			want.byKey[o.Key], entries[o.Key] = o, inventory.Entry{UID: "u"}
			want.objects = append(want.objects, o)
		}
		for n := range c.uncreated { // their creation is recorded, and was refused
			o := wish(t, fmt.Sprint("uncreated-", n), object.Nobody)
			want.byKey[o.Key], entries[o.Key] = o, inventory.Entry{Mark: "m"}
			want.objects = append(want.objects, o)
		}
		for n := range 50 { // what the release brings must not make the half larger
			o := wish(t, fmt.Sprint("release-", n), object.Optional)
			want.byKey[o.Key], entries[o.Key] = o, inventory.Entry{UID: "u"}
			want.objects = append(want.objects, o)
		}
		var lost []object.Key
		for n := range c.lost {
			lost = append(lost, wish(t, fmt.Sprint("lost-", n), object.Nobody).Key)
		}
		a := &Applier{options: Options{MaxPrune: c.most}}
		a.AskConsent(func(_ context.Context, own node.Source) (reconciler.Consent, error) {
			if own != want.source() || own.Objects != c.kept+c.uncreated {
				t.Errorf("%s: asked with %+v", c.what, own)
			}
			return c.consent, c.asking
		})
		got := a.refuses(t.Context(), want, entries, lost).String()
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
		if got != "" && c.asking == nil && !strings.Contains(got, want.source().Digest) {
			t.Errorf("%s: it does not say what to approve: %s", c.what, got)
		}
	}
	if (Options{MaxPrune: -1}).Validate() == nil {
		t.Error("a negative limit")
	}
	if _, err := Open("", Options{}, nil); err == nil {
		t.Error("no kubeconfig")
	}
}

// TestSourceIsOfObjects: the digest is that of what is wanted, not of where it is written.
func TestSourceIsOfObjects(t *testing.T) {
	t.Parallel()
	of := func(objects ...*object.Object) node.Source { return (&wanted{objects: objects}).source() }
	a, b, c := wish(t, "a", object.Nobody), wish(t, "b", object.Nobody), wish(t, "c", object.Required)
	if of(a, b, c) != of(a, b) || of(a, b).Objects != 2 {
		t.Error("the release's own objects are part of it")
	}
	if of(a) == of(b) || of(a) == of() {
		t.Error("different objects have the same digest")
	}
	own := func(s builtin.Selection) node.Source {
		a, err := offline(Options{Manifests: t.TempDir(), Selection: s}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return a.Source(t.Context())
	}
	all := builtin.Selection{Names: builtin.All(), DefaultClass: "local"}
	before := own(all)
	if again := own(all); before.Own.Digest == "" || again != before {
		t.Error("the same settings have different digests, or none")
	}
	for _, other := range []builtin.Selection{{}, {Names: builtin.All()}, {Names: builtin.All(), DefaultClass: "local", Capacity: true}} {
		if got := own(other); got.Own.Digest == before.Own.Digest || got.Digest != before.Digest {
			t.Errorf("%+v: %+v, after %+v", other, got, before)
		}
	}
	if s := (&wanted{unread: 2}).source(); s.Whole() || s.Faults != 2 {
		t.Errorf("what cannot be read is not told: %+v", s)
	}
}
