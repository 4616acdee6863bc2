package bmdb

import (
	"context"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// SetDiscrepancies replaces the discrepancies of the provider; Since stays for those that were
// there.
func SetDiscrepancies(discrepancies []Discrepancy) Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
		return t.setDiscrepancies(ctx, c, discrepancies)
	}}
}

func (t *transaction) setDiscrepancies(ctx context.Context, c *commit, discrepancies []Discrepancy) error {
	provider := string(c.work.Subject.Provider)
	rows, err := t.q.ListProviderDiscrepancies(ctx, provider)
	if err != nil {
		return err
	}
	old := make(map[Discrepancy]Discrepancy, len(rows))
	for _, r := range rows {
		d := discrepancyOf(r)
		old[d.identity()] = d
	}
	for _, d := range discrepancies {
		was, there := old[d.identity()]
		delete(old, d.identity())
		if there && was.Evidence == d.Evidence && was.Remedy == d.Remedy {
			continue
		}
		err := t.q.PutDiscrepancy(ctx, statement.PutDiscrepancyParams{
			Provider: provider, Kind: string(d.Kind), ProviderID: string(d.ProviderID), Machine: string(d.Machine), Since: micros(t.Now()),
			Evidence: d.Evidence, Remedy: d.Remedy,
		})
		if err != nil {
			return err
		}
		if there {
			continue
		}
		c.record(t, d.Machine, fleet.EventDiscrepancy, string(d.Kind)+": "+d.Evidence)
	}
	for gone := range old {
		err := t.q.DeleteDiscrepancy(ctx, statement.DeleteDiscrepancyParams{
			Provider: provider, Kind: string(gone.Kind), ProviderID: string(gone.ProviderID), Machine: string(gone.Machine),
		})
		if err != nil {
			return err
		}
		c.record(t, gone.Machine, fleet.EventDiscrepancyCleared, string(gone.Kind))
	}
	return nil
}

// countDiscrepancies counts those of a provider, at most CountedAtMost.
func (t *transaction) countDiscrepancies(ctx context.Context, name fleet.ProviderName) (int, error) {
	n, err := t.q.CountProviderDiscrepancies(ctx, statement.CountProviderDiscrepanciesParams{Provider: string(name), MaxRows: CountedAtMost})
	return int(n), err
}

// identity is what stays the same while a discrepancy lasts.
func (d Discrepancy) identity() Discrepancy {
	return Discrepancy{Kind: d.Kind, ProviderID: d.ProviderID, Machine: d.Machine}
}
