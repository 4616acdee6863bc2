package postgres

import (
	"context"
	"fmt"

	"github.com/ironherd/ironherd/internal/fleet"
)

// The locks; why these, see the package comment.
const (
	lockSessionShared    = "SELECT id FROM session WHERE id = $1 FOR KEY SHARE"
	lockSessionExclusive = "SELECT id FROM session WHERE id = $1 FOR UPDATE"
	lockProviders        = "SELECT name FROM provider WHERE name = ANY($1) ORDER BY name FOR NO KEY UPDATE"
	lockMachines         = "SELECT id FROM machine WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE"
)

// LockSession implements bmdb.Tx.
func (t *tx) LockSession(ctx context.Context, id fleet.SessionID, exclusive bool) error {
	text := lockSessionShared
	if exclusive {
		text = lockSessionExclusive
	}
	if _, err := query[string](ctx, t, text, string(id)); err != nil {
		return fmt.Errorf("lock session %s: %w", id, err)
	}
	return nil
}

// LockProviders implements bmdb.Tx.
func (t *tx) LockProviders(ctx context.Context, names []fleet.ProviderName, skipLocked bool) ([]fleet.ProviderName, error) {
	return lockRows(ctx, t, "providers", lockProviders, names, skipLocked)
}

// LockMachines implements bmdb.Tx.
func (t *tx) LockMachines(ctx context.Context, ids []fleet.MachineID, skipLocked bool) ([]fleet.MachineID, error) {
	return lockRows(ctx, t, "machines", lockMachines, ids, skipLocked)
}

func lockRows[K ~string](ctx context.Context, t *tx, what, text string, keys []K, skipLocked bool) ([]K, error) {
	if skipLocked {
		text += " SKIP LOCKED"
	}
	locked, err := query[K](ctx, t, text, keys)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", what, err)
	}
	return locked, nil
}
