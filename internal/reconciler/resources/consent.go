package resources

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
	"github.com/ironherd/ironherd/reconciler/node"
)

// source is what the manifests say. It depends on the objects alone, not on the files that they are
// in.
func (w *wanted) source() node.Source {
	objects := w.of(false)
	return node.Source{Digest: digest(objects), Objects: len(objects), Faults: w.unread}
}

// digest stands for objects, which are sorted.
func digest(objects []*object.Object) string {
	sum := sha256.New()
	for _, o := range objects {
		// a hash takes whatever is written to it
		_, _ = fmt.Fprintf(sum, "%s/%s/%s/%s %s\n", o.Group, o.Kind, o.Namespace, o.Name, o.Hash())
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

// Source implements reconciler.Sourcer.
func (a *Applier) Source(ctx context.Context) node.Source {
	w := a.wantSettled(ctx)
	source := w.source()
	source.Own.Digest = digest(w.of(true))
	return source
}

// AskConsent implements reconciler.Sourcer.
func (a *Applier) AskConsent(ask func(context.Context, node.Source) (reconciler.Consent, error)) {
	a.ask = ask
}

// refusal is why what is no longer in the manifests may not be deleted.
type refusal struct {
	// reason in words; empty: it may.
	reason string
	// approve is the digest that a person can approve to overrule it; empty: nobody can.
	approve string
}

// String is the reason and what ends the refusal.
func (r refusal) String() string {
	if r.approve == "" {
		return r.reason
	}
	return r.reason + ": none is deleted until that changes, or somebody approves the manifests " + r.approve
}

// refuses says why the objects that are no longer in the manifests may not be deleted. Three things
// make it unlikely that their author has decided so, and a person who says that it is a decision
// overrules all three, so each that holds is told:
//
//   - more than Options.MaxPrune of them at once;
//   - more than half of what we created from manifests: a disk that is not mounted, a link that
//     leads nowhere. Neither what the release brings is counted, nor Namespaces and definitions;
//   - other nodes have other manifests: after a failover, or on the first node of a new release,
//     those of the new leader may be the older ones, or only a part.
func (a *Applier) refuses(ctx context.Context, want *wanted, entries map[object.Key]inventory.Entry, lost []object.Key) refusal {
	if len(lost) == 0 {
		return refusal{}
	}
	source := want.source()
	consent := reconciler.Consent{}
	consent.Agreed.OK = true
	if a.ask != nil {
		var err error
		if consent, err = a.ask(ctx, source); err != nil {
			return refusal{reason: "the other nodes cannot be asked whether they have the same manifests: " + err.Error()}
		}
	}
	if consent.Approved {
		return refusal{}
	}
	all := len(lost)
	for key, entry := range entries {
		if o := want.byKey[key]; o != nil && o.Need == object.Nobody && !key.Container() && entry.UID != "" {
			all++
		}
	}
	var many []string
	if most := a.options.MaxPrune; most > 0 && len(lost) > most {
		many = append(many, fmt.Sprintf("more than max_prune allows (%d)", most))
	}
	if 2*len(lost) > all {
		many = append(many, "more than half")
	}
	why := ""
	if many != nil {
		why = ", which is " + strings.Join(many, " and ")
	}
	if !consent.Agreed.OK {
		why += ", but " + consent.Agreed.Reason
	}
	if why == "" {
		return refusal{}
	}
	return refusal{
		reason:  fmt.Sprintf("%d of the %d objects that were created from manifests are no longer in them%s", len(lost), all, why),
		approve: source.Digest,
	}
}
