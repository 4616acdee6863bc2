package bmdb

import (
	"context"
	"fmt"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	// foldAbove is how many rows the counts of a provider may have before they are folded, foldBatch
	// how many are at a time.
	foldAbove = 200
	foldBatch = 5000
)

// InstallFailing is how many attempts at an install that fail one after the other are no accident.
const InstallFailing = 3

// CountFailingInstalls counts the machines in the state installing of which the newest attempts
// have failed, InstallFailing of them or more: at most CountedAtMost. It reads the backoffs of
// installs alone.
func (db *DB) CountFailingInstalls(ctx context.Context) (int, error) {
	n, err := read(ctx, db.peek, "count failing installs", func(ctx context.Context, t *transaction) (int64, error) {
		return t.q.CountFailing(ctx, statement.CountFailingParams{
			Process: string(fleet.ProcessInstall), State: string(fleet.StateInstalling), Least: InstallFailing, MaxRows: CountedAtMost,
		})
	})
	return int(n), err
}

// foldCounts keeps the state counts short: for each provider, with its row locked, the sum takes
// the place of the rows.
func (db *DB) foldCounts(ctx context.Context) error {
	counts, err := read(ctx, db.view, "length of the state counts", func(ctx context.Context, t *transaction) ([]statement.CountStateCountsRow, error) {
		return t.q.CountStateCounts(ctx)
	})
	if err != nil {
		return err
	}
	for _, c := range counts {
		if c.N <= foldAbove {
			continue
		}
		err := db.update(ctx, "fold state counts", func(ctx context.Context, t *transaction) error {
			return t.foldCounts(ctx, fleet.ProviderName(c.Provider))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *transaction) foldCounts(ctx context.Context, provider fleet.ProviderName) error {
	l := locks{providers: []fleet.ProviderName{provider}}
	if err := l.take(ctx, t); err != nil {
		return err
	}
	rows, err := t.q.TakeStateCounts(ctx, statement.TakeStateCountsParams{Provider: string(provider), MaxRows: foldBatch})
	for _, r := range rows {
		t.buffer.count(string(provider), r.State, r.N)
	}
	return err
}

// checkCounts compares the state counts with the states.
func (t *transaction) checkCounts(ctx context.Context) ([]Finding, error) {
	rows, err := t.q.ListWrongCounts(ctx)
	var findings []Finding
	for _, r := range rows {
		findings = append(findings, Finding{
			"count", providerKey(fleet.ProviderName(r.Provider)), fmt.Sprintf("the count of machines in state %s is off by %d", r.State, r.N),
		})
	}
	return findings, err
}
