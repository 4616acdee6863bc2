package bmdb

import (
	"context"
	"encoding/json"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	// mostPolicies is how many of the newest policies are looked at for what units were told.
	mostPolicies = 100
	// policySettles is for how long after a new policy somebody may still act under the one before: a
	// transaction that has begun before it.
	policySettles = time.Minute
)

// policy is one of the numbered policies, with what those before it are still good for.
type policy struct {
	newest        fleet.Policy
	watchedBefore []fleet.WatchedBefore
}

// policy returns the policy of that number; a number never changes its meaning.
func (t *transaction) policy(ctx context.Context, number int64) (*policy, error) {
	if p := t.db.policy.Load(); p != nil && p.newest.Number == number {
		return p, nil
	}
	rows, err := t.q.ListPolicies(ctx, statement.ListPoliciesParams{Number: number, MaxRows: mostPolicies})
	if err != nil {
		return nil, err
	}
	p := new(policy)
	var longest time.Duration
	for i, row := range rows {
		of := fleet.DefaultPolicy() // for what an older version did not store
		if err := json.Unmarshal([]byte(row.Body), &of); err != nil {
			return nil, err
		}
		switch {
		case i == 0:
			p.newest, p.newest.Number = of, number
		case of.CallInterval() > longest:
			until := instant(rows[i-1].At).Add(policySettles)
			p.watchedBefore = append(p.watchedBefore, fleet.WatchedBefore{Until: until, Interval: of.CallInterval()})
		}
		longest = max(longest, of.CallInterval())
	}
	t.db.policy.Store(p)
	return p, nil
}
