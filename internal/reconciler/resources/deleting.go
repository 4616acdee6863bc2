package resources

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ironherd/ironherd/reconciler"
)

// maxDeleting is how many deletions the summary lists.
const maxDeleting = 100

// deletions returns the objects that are no longer wanted, whose deletion has begun, and that their
// finalizers hold. It looks into mirrors alone: who deletes them, we or somebody else, makes no
// difference.
func (p *pass) deletions() (all []reconciler.Deletion) {
	if p.want.unknown || p.kinds == nil {
		return nil
	}
	for _, l := range slices.Backward(p.want.unwanted(p.ledger.entries())) {
		kind, err := p.kinds.Any(l.Key)
		if err != nil || p.mirrors[kind.Resource] == nil {
			continue
		}
		live := p.mirrors[kind.Resource].Get(nameOf(l.Key))
		if live == nil || live.DeletionTimestamp == nil || len(live.Finalizers) == 0 || !l.ours(live) {
			continue
		}
		all = append(all, reconciler.Deletion{Object: l.Key.String(), Finalizers: live.Finalizers, Since: live.DeletionTimestamp.UTC()})
	}
	return all
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
