package resources

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// maxDeleting is how many deletions the summary lists.
const maxDeleting = 100

// deletions returns the objects that are no longer wanted, whose deletion has begun, and that their
// finalizers hold. It looks into mirrors alone: who deletes them, we or somebody else, makes no
// difference. It starts those that are missing, because while manifests cannot be read nothing else
// may need them. Nobody waits for it, so it takes a bounded time.
func (p *pass) deletions(ctx context.Context) (all []reconciler.Deletion) {
	if p.want.unknown || p.kinds == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, looksFor)
	defer cancel()
	for _, l := range slices.Backward(p.want.unwanted(p.ledger.entries())) {
		kind, err := p.kinds.Any(l.Key)
		if err != nil {
			continue
		}
		m, err := p.mirror(ctx, kind)
		if err != nil || m.Await(ctx) != nil {
			continue
		}
		live := m.Get(nameOf(l.Key))
		if live == nil || live.DeletionTimestamp == nil || len(live.Finalizers) == 0 || !l.ours(live) {
			continue
		}
		all = append(all, reconciler.Deletion{Object: l.Key.String(), Finalizers: live.Finalizers, Since: begunToDelete(live)})
	}
	return all
}

// countUnrecorded counts the wanted objects that bear our mark and are not those of the inventory:
// it was lost, or they were put back by a tool that has given them new UIDs. What is never deleted
// in any case is not counted, nor what is being deleted.
func (p *pass) countUnrecorded() (n int) {
	entries := p.ledger.entries()
	for key, i := range p.located {
		live := p.now(i)
		if live == nil || live.DeletionTimestamp != nil || key.Container() ||
			i.NeverPruned() || live.Annotations[object.Prune] == object.NeverPrune {
			continue
		}
		if mark := live.Annotations[object.Mark]; mark != "" && !entries[key].Ours(string(live.UID), mark) {
			n++
		}
	}
	return n
}

// WhyUnrecorded says what reconciler.Report.Unrecorded means, for people.
func WhyUnrecorded(n int) string {
	return fmt.Sprintf("wanted objects that bear the mark of their creation by the reconciler, and that the inventory does not have as they are: %d; "+
		"the reconciler will not delete them when they are no longer wanted", n)
}

// begunToDelete returns when the deletion of an object began. What the server keeps is when it may
// be carried out: that is after the grace that a Pod has, say.
func begunToDelete(live *metav1.PartialObjectMetadata) time.Time {
	var grace int64
	if live.DeletionGracePeriodSeconds != nil {
		grace = *live.DeletionGracePeriodSeconds
	}
	return live.DeletionTimestamp.UTC().Add(-time.Duration(grace) * time.Second)
}

// deletionList lists deletions for the summary.
func deletionList(all []reconciler.Deletion) string {
	var text strings.Builder
	for n, d := range all {
		if n == maxDeleting {
			_, _ = fmt.Fprintf(&text, "… and %d more\n", len(all)-n)
			break
		}
		_, _ = fmt.Fprintf(&text, "%s: %s\n", oneLine(d.Object), oneLine(d.Why()))
	}
	return text.String()
}
