package provisioner

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// One list may differ from the database in everything: neither the log nor one transaction, for
// which all others wait, takes in all of it.
const (
	// unusableLogged is how many entries that are left alone a pass logs.
	unusableLogged = 20
	// recordedOfAKind is how many discrepancies of each kind a pass records.
	recordedOfAKind = 1000
)

// logUnusable logs the first entries that are left alone, and the number of the others.
func (p *pass) logUnusable(ctx context.Context) {
	for i, reason := range p.survey.unusable {
		if i == unusableLogged {
			p.logger.WarnContext(ctx, "more entries are left alone", slog.Int("entries", len(p.survey.unusable)-i))
			return
		}
		p.logger.WarnContext(ctx, "entry is left alone", slog.String("reason", reason))
	}
}

// bounded returns those discrepancies that are recorded: of each kind those that an earlier pass
// has recorded come first, so that the same ones stay. One of the kind that names no machine says
// how many more there are.
func (p *pass) bounded(found []bmdb.Discrepancy) (recorded []bmdb.Discrepancy) {
	type identity struct {
		kind    fleet.DiscrepancyKind
		id      fleet.ProviderID
		machine fleet.MachineID
	}
	of := func(d bmdb.Discrepancy) identity { return identity{d.Kind, d.ProviderID, d.Machine} }
	earlier := make(map[identity]bool, len(p.view.Discrepancies))
	for _, d := range p.view.Discrepancies {
		earlier[of(d)] = true
	}
	rank := func(d bmdb.Discrepancy) int {
		if earlier[of(d)] {
			return 0
		}
		return 1
	}
	for _, kind := range fleet.DiscrepancyKinds() {
		var all []bmdb.Discrepancy
		for _, d := range found {
			if d.Kind == kind {
				all = append(all, d)
			}
		}
		if more := len(all) - recordedOfAKind; more > 0 {
			slices.SortFunc(all, func(a, b bmdb.Discrepancy) int {
				return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.ProviderID, b.ProviderID), cmp.Compare(a.Machine, b.Machine))
			})
			all = append(all[:recordedOfAKind], bmdb.Discrepancy{
				Kind:     kind,
				Evidence: fmt.Sprintf("there are %d more of this kind, which are recorded as these end", more),
				Remedy:   "look first why there are so many: the provider may tell of another project, or the database may be a wrong one",
			})
		}
		recorded = append(recorded, all...)
	}
	return recorded
}
