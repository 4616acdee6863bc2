package sqlite

import (
	"context"
	"fmt"

	"github.com/ironherd/ironherd/internal/fleet"
)

const listSlots = "SELECT slot FROM storm_slot WHERE process = $1 AND provider = $2 AND slot <= $3 ORDER BY slot"

// LockSlots locks nothing, as all locks here: see LockSession.
func (t *tx) LockSlots(ctx context.Context, process fleet.Process, provider fleet.ProviderName, limit int) (numbers []int64, err error) {
	rows, err := t.QueryContext(ctx, listSlots, string(process), string(provider), int64(limit))
	if err != nil {
		return nil, fmt.Errorf("list the slots of %s: %w", provider, err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var number int64
		if err := rows.Scan(&number); err != nil {
			return nil, fmt.Errorf("list the slots of %s: %w", provider, err)
		}
		numbers = append(numbers, number)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list the slots of %s: %w", provider, err)
	}
	return numbers, nil
}
