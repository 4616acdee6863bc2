package postgres

import (
	"context"
	"fmt"

	"github.com/ironherd/ironherd/internal/fleet"
)

const lockSlots = "SELECT slot FROM storm_slot WHERE process = $1 AND provider = $2 AND slot <= $3 ORDER BY slot FOR NO KEY UPDATE"

// LockSlots implements bmdb.Tx.
func (t *tx) LockSlots(ctx context.Context, process fleet.Process, provider fleet.ProviderName, limit int) (numbers []int64, err error) {
	rows, err := t.QueryContext(ctx, lockSlots, string(process), string(provider), int64(limit))
	if err != nil {
		return nil, fmt.Errorf("lock the slots of %s: %w", provider, err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var number int64
		if err := rows.Scan(&number); err != nil {
			return nil, fmt.Errorf("lock the slots of %s: %w", provider, err)
		}
		numbers = append(numbers, number)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("lock the slots of %s: %w", provider, err)
	}
	return numbers, nil
}
