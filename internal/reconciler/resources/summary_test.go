package resources

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
	kuberelease "github.com/ironherd/ironherd/reconciler/release"
)

// TestSummaryIsBounded: however many objects there are, and whatever their reasons are, the summary
// fits in a ConfigMap, lists first what people should look at, and counts the rest.
func TestSummaryIsBounded(t *testing.T) {
	t.Parallel()
	var all []standing
	for n := range 20000 {
		s := standing{looked: true, healthy: true}
		s.Key = object.Key{
			Group: fmt.Sprintf("g%d.%s", n%1000, strings.Repeat("x", 200)), Kind: "Kind" + strings.Repeat("k", 60),
			Namespace: strings.Repeat("n", 63), Name: fmt.Sprintf("%d-%s", n, strings.Repeat("o", 240)),
		}
		switch {
		case n >= 19990:
			s.unapplied = "refused\x1b[31m\n" + strings.Repeat("ü", 2000)
		case n%10 == 0:
			s.healthy, s.unhealthy = false, strings.Repeat("sick ", 500)
		}
		all = append(all, s)
	}
	data := summary(reconciler.Standing{Leader: "n1", Release: kuberelease.MustParse("v1.2.3"), Doing: strings.Repeat("x", 5000), PassError: "a\nb", Blocked: "x"}, all, slices.Repeat([]reconciler.Deletion{{Object: strings.Repeat("d", 400), Finalizers: slices.Repeat([]string{"x\n"}, 500)}}, 20000))
	size := 0
	for name, text := range data {
		size += len(name) + len(text)
		if strings.ContainsAny(text, "\x1b\t") {
			t.Errorf("%s has control characters", name)
		}
	}
	if size > 1<<20-100<<10 {
		t.Errorf("the summary has %d bytes", size)
	}
	lines := strings.Split(strings.TrimSpace(data["objects"]), "\n")
	if len(lines) != maxLines+2 || !strings.HasPrefix(lines[1], "no ") || !strings.HasPrefix(lines[10], "no ") || !strings.HasPrefix(lines[11], "yes      no ") {
		t.Errorf("%d lines: %.200q, %.100q", len(lines), lines[1], lines[11])
	}
	if last := lines[len(lines)-1]; last != "… and 19500 more, of which 0 are not applied, and 1509 are not healthy" {
		t.Error(last)
	}
	if want := "20000 objects are wanted: 19990 are applied, 10 are not; 18001 are healthy, 1999 are not, of 0 it is not known"; data["summary"] != want {
		t.Errorf("%s, want %s", data["summary"], want)
	}
	if kinds := strings.Split(strings.TrimSpace(data["kinds"]), "\n"); len(kinds) != maxLines+2 || kinds[len(kinds)-1] != "… and 500 more kinds" {
		t.Errorf("%d lines of kinds, last %q", len(kinds), kinds[len(kinds)-1])
	}
}

// TestSummaryForgets: who leads again does not tell how things stood when he led before.
func TestSummaryForgets(t *testing.T) {
	t.Parallel()
	a := &Applier{attached: make(chan struct{})}
	a.attach(&session{})
	a.standings, a.summarySeen = []standing{{looked: true, healthy: true}}, "1"
	a.attach(nil)
	a.attach(&session{})
	if got := summary(reconciler.Standing{}, a.standings, a.deleting)["summary"]; got != "no pass has ended yet" || a.summarySeen != "" {
		t.Errorf("%s, and the summary of version %q is seen", got, a.summarySeen)
	}
}

// TestSummarySays what it says of few objects, literally.
func TestSummarySays(t *testing.T) {
	t.Parallel()
	key := func(kind, name string) object.Key { return object.Key{Kind: kind, Namespace: "default", Name: name} }
	data := summary(reconciler.Standing{Leader: "control-1", Release: kuberelease.MustParse("v1.3.0"), Status: "done", Doing: "holding: x", Blocked: "x"}, []standing{
		{Key: key("ConfigMap", "a"), looked: true, healthy: true},
		{Key: key("Deployment", "b"), looked: true, unhealthy: "in progress: Available: 0/1"},
		{Key: key("ConfigMap", "c"), unapplied: "it waits for Deployment default/b, which is not healthy: in progress: Available: 0/1"},
		{Key: key("Deployment", "d")},
	}, []reconciler.Deletion{{Object: "Secret default/e", Finalizers: []string{"example.com/x", "y"}, Since: time.Unix(1800000000, 0)}})
	const want = `APPLIED  HEALTHY  OBJECT                WHY NOT
no       unknown  ConfigMap default/c   it waits for Deployment default/b, which is not healthy: in progress: Available: 0/1
yes      no       Deployment default/b  in progress: Available: 0/1
yes      unknown  Deployment default/d  it was not looked at yet
yes      yes      ConfigMap default/a
`
	if data["objects"] != want {
		t.Errorf("%s\nwant\n%s", data["objects"], want)
	}
	const kinds = `KIND        OBJECTS  APPLIED  HEALTHY
ConfigMap   2        1        1
Deployment  2        2        0
`
	if data["kinds"] != kinds || data["leader"] != "control-1" || data["release"] != "v1.3.0" || data["blocked"] != "x" {
		t.Errorf("%q", data)
	}
	if want := "Secret default/e: its deletion began at 2027-01-15T08:00:00Z, and its finalizers hold it: example.com/x, y\n"; data["deleting"] != want {
		t.Errorf("%q, want %q", data["deleting"], want)
	}
	if data := summary(reconciler.Standing{}, nil, nil); data["summary"] != "no pass has ended yet" {
		t.Errorf("%q", data["summary"])
	}
}
