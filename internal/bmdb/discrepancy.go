package bmdb

import (
	"context"
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// SetDiscrepancies replaces the discrepancies of the provider; Since stays for those that were
// there. None begins of a machine that is not there any more: it was forgotten after the pass had
// looked, and the remedy would fail.
func SetDiscrepancies(discrepancies []Discrepancy) Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
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
			if !there && d.Machine != "" {
				switch _, err := t.row(ctx, d.Machine); {
				case fleet.KindOf(err) == fleet.KindNotFound:
					continue
				case err != nil:
					return err
				}
			}
			err := t.q.PutDiscrepancy(ctx, statement.PutDiscrepancyParams{
				Provider: provider, Kind: string(d.Kind), ProviderID: string(d.ProviderID), Machine: string(d.Machine), Since: micros(t.Now()),
				Evidence: d.Evidence, Remedy: d.Remedy,
			})
			if err != nil {
				return err
			}
			if !there {
				c.addHistory(t, d.Machine, fleet.EventDiscrepancy, string(d.Kind)+": "+d.Evidence)
			}
		}
		for gone := range old {
			err := t.q.DeleteDiscrepancy(ctx, statement.DeleteDiscrepancyParams{
				Provider: provider, Kind: string(gone.Kind), ProviderID: string(gone.ProviderID), Machine: string(gone.Machine),
			})
			if err != nil {
				return err
			}
			c.addHistory(t, gone.Machine, fleet.EventDiscrepancyCleared, string(gone.Kind))
		}
		return t.q.SetCompared(ctx, statement.SetComparedParams{At: c.work.since, Name: provider})
	}}
}

// identity is what stays the same while a discrepancy lasts.
func (d Discrepancy) identity() Discrepancy {
	return Discrepancy{Kind: d.Kind, ProviderID: d.ProviderID, Machine: d.Machine}
}

// Uncompared is a provider of which no discrepancies say little: no pass has compared its list with
// the database lately, or none since the database looks restored.
type Uncompared struct {
	Provider fleet.ProviderName
	// At is when the last pass had begun that compared it; zero: there was none.
	At time.Time
	// Why in one clause.
	Why string
}

// comparedFor is how long a comparison counts, besides two intervals between passes: a pass over
// many thousand machines takes minutes.
const comparedFor = 15 * time.Minute

// Uncompared lists such providers in the order of their names.
func (db *DB) Uncompared(ctx context.Context) ([]Uncompared, error) {
	return read(ctx, db.view, "list what is not compared", func(ctx context.Context, t *transaction) (list []Uncompared, err error) {
		env, err := t.environment(ctx)
		if err != nil {
			return nil, err
		}
		restored, err := t.q.ListRestoredAt(ctx)
		if err != nil {
			return nil, err
		}
		rows, err := t.q.ListProviders(ctx)
		for _, row := range rows {
			// An older version tells only of passes that ended well.
			compared := max(row.ComparedAt, row.LastPassAt)
			u := Uncompared{Provider: fleet.ProviderName(row.Name), At: instant(compared)}
			switch {
			case compared == 0:
				u.Why = "it was never compared"
			case len(restored) > 0 && compared < restored[0]:
				u.Why = fmt.Sprintf("it was last compared at %s, and the database looks restored since %s", fleet.Instant(u.At), fleet.Instant(instant(restored[0])))
			case t.Now().Sub(u.At) > 2*env.Policy.ProvisionInterval+comparedFor:
				u.Why = "it was last compared at " + fleet.Instant(u.At)
			default:
				continue
			}
			list = append(list, u)
		}
		return list, err
	})
}
