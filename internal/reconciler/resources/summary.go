package resources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// summaryName is the ConfigMap, beside the inventory, that tells people how things stand.
const summaryName = "ironherd-reconciler-summary"

// summaryKey is that ConfigMap as an object.
var summaryKey = object.Key{Kind: "ConfigMap", Namespace: inventory.Namespace, Name: summaryName}

const (
	// maxLines is how many objects, and how many kinds, the summary lists.
	maxLines = 500
	// maxWhy is how long a reason in the summary may be. With maxLines, it fits in a ConfigMap.
	maxWhy = 300
)

// standing is how one wanted object stands.
type standing struct {
	object.Key
	// release tells that the release itself wants it.
	release bool
	// unapplied is why it is not as wanted; empty: it is.
	unapplied string
	// looked tells that the health is known; unhealthy is why it is not healthy.
	looked, healthy bool
	unhealthy       string
}

// why says in words what is wrong with an object.
func (s standing) why() string {
	switch {
	case s.unapplied != "":
		return s.unapplied
	case !s.looked:
		return notLooked
	}
	return s.unhealthy
}

// rank puts first what people should look at.
func (s standing) rank() int {
	switch {
	case s.unapplied != "":
		return 0
	case s.looked && !s.healthy:
		return 1
	case !s.looked:
		return 2
	}
	return 3
}

// summarized is the summary as it was written last. Only Publish uses it, but for seen.
type summarized struct {
	data    map[string]string
	version string
}

// Publish implements reconciler.Publisher. It writes a ConfigMap when what it has to say has
// changed, or when somebody else has changed the ConfigMap.
func (a *Applier) Publish(ctx context.Context, s reconciler.Standing) error {
	a.mu.Lock()
	data, seen := summary(s, a.standings, a.deleting), a.summarySeen
	a.mu.Unlock()
	if maps.Equal(data, a.summarized.data) && seen == a.summarized.version {
		return nil
	}
	client := a.client.ConfigMaps(inventory.Namespace)
	ctx, cancel := context.WithTimeout(a.client.Logging(ctx), lookFor)
	defer cancel()
	live, err := client.Get(ctx, summaryName, metav1.GetOptions{})
	if err != nil && !object.NotFound(err) {
		return fmt.Errorf("read the summary: %w", err)
	}
	if there := err == nil; there && a.summarized.data != nil && maps.Equal(data, a.summarized.data) && live.GetResourceVersion() == a.summarized.version {
		return nil // no pass has seen yet what we wrote
	}
	stored := maps.Clone(data)
	stored["written"] = time.Now().UTC().Format(time.RFC3339)
	m := summaryConfigMap(stored)
	if object.NotFound(err) {
		live, err = client.Create(ctx, m, metav1.CreateOptions{FieldManager: object.Manager})
	} else {
		m.SetResourceVersion(live.GetResourceVersion()) // whoever leads now may have written it
		live, err = client.Update(ctx, m, metav1.UpdateOptions{FieldManager: object.Manager})
	}
	if err != nil {
		return fmt.Errorf("write the summary: %w", err)
	}
	if live == nil {
		return errors.New("write the summary: the server has not answered with what it stored")
	}
	a.summarized = summarized{data: data, version: live.GetResourceVersion()}
	return nil
}

func summaryConfigMap(data map[string]string) *unstructured.Unstructured {
	content := map[string]any{}
	for name, text := range data {
		content[name] = text
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "data": content,
		"metadata": map[string]any{
			"name": summaryName, "namespace": inventory.Namespace, "labels": map[string]any{object.Label: "true"},
			"annotations": map[string]any{
				object.Description: "How the objects stand that the Ironherd reconciler keeps. Written by its leader, for people; nothing is decided from it.",
			},
		},
	}}
}

// summary says in words how things stand.
func summary(s reconciler.Standing, objects []standing, deleting []reconciler.Deletion) map[string]string {
	data := map[string]string{
		"leader": oneLine(s.Leader), "release": s.Release.String(), "status": oneLine(s.Status), "doing": oneLine(s.Doing),
		"summary": counts(objects), "objects": objectTable(objects), "kinds": kindTable(objects),
	}
	if s.Blocked != "" {
		data["blocked"] = oneLine(s.Blocked)
	}
	if len(deleting) > 0 {
		data["deleting"] = deletionList(deleting)
	}
	if s.PassError != "" {
		data["trouble"] = oneLine(s.PassError)
	}
	return data
}

// tally counts objects.
type tally struct{ objects, applied, healthy, unhealthy int }

func (t *tally) add(s standing) {
	t.objects++
	if s.unapplied == "" {
		t.applied++
	}
	switch {
	case s.looked && s.healthy:
		t.healthy++
	case s.looked:
		t.unhealthy++
	}
}

func counts(objects []standing) string {
	if objects == nil {
		return "no pass has ended yet"
	}
	var t tally
	for _, s := range objects {
		t.add(s)
	}
	return fmt.Sprintf("%d objects are wanted: %d are applied, %d are not; %d are healthy, %d are not, of %d it is not known",
		t.objects, t.applied, t.objects-t.applied, t.healthy, t.unhealthy, t.objects-t.healthy-t.unhealthy)
}

// objectTable lists the objects, those first that people should look at.
func objectTable(objects []standing) string {
	sorted := slices.SortedStableFunc(slices.Values(objects), func(a, b standing) int { return cmp.Compare(a.rank(), b.rank()) })
	var left tally
	text := table("APPLIED\tHEALTHY\tOBJECT\tWHY NOT", func(row func(...string)) {
		for n, s := range sorted {
			if n >= maxLines {
				left.add(s)
				continue
			}
			healthy := map[bool]string{true: "yes", false: "no"}[s.healthy]
			if !s.looked {
				healthy = "unknown"
			}
			applied, why := "yes", ""
			if s.unapplied != "" {
				applied = "no"
			}
			if s.rank() < 3 {
				why = oneLine(s.why())
			}
			row(applied, healthy, oneLine(s.Key.String()), why)
		}
	})
	if left.objects > 0 {
		text += fmt.Sprintf("… and %d more, of which %d are not applied, and %d are not healthy\n", left.objects, left.objects-left.applied, left.unhealthy)
	}
	return text
}

// kindTable counts the objects of each kind.
func kindTable(objects []standing) string {
	kinds := map[string]*tally{}
	for _, s := range objects {
		kind := s.Kind
		if s.Group != "" {
			kind += "." + s.Group
		}
		if kinds[kind] == nil {
			kinds[kind] = &tally{}
		}
		kinds[kind].add(s)
	}
	names := slices.Sorted(maps.Keys(kinds))
	more := len(names) - maxLines
	text := table("KIND\tOBJECTS\tAPPLIED\tHEALTHY", func(row func(...string)) {
		for _, name := range names[:min(len(names), maxLines)] {
			t := kinds[name]
			row(oneLine(name), fmt.Sprint(t.objects), fmt.Sprint(t.applied), fmt.Sprint(t.healthy))
		}
	})
	if more > 0 {
		text += fmt.Sprintf("… and %d more kinds\n", more)
	}
	return text
}

// table writes rows in columns, without spaces at the ends of lines: with some, people are shown an
// escaped text and no table.
func table(header string, rows func(row func(...string))) string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, header)
	rows(func(cells ...string) { _, _ = fmt.Fprintln(w, strings.TrimRight(strings.Join(cells, "\t"), "\t")) })
	_ = w.Flush()
	var trimmed strings.Builder
	for line := range strings.Lines(out.String()) {
		trimmed.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return trimmed.String()
}

// oneLine makes one line of bounded length of a text, which may come from anywhere.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	return strings.TrimSpace(clip(text, maxWhy))
}

// clip shortens a text to a number of bytes.
func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
