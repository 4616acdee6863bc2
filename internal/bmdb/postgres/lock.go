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
	lockProvidersFree    = lockProviders + " SKIP LOCKED"
	lockMachines         = "SELECT id FROM machine WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE"
	lockMachinesFree     = lockMachines + " SKIP LOCKED"
)

// LockSession implements bmdb.Tx.
func (t *tx) LockSession(ctx context.Context, id fleet.SessionID, exclusive bool) error {
	query := lockSessionShared
	if exclusive {
		query = lockSessionExclusive
	}
	if _, err := t.lock(ctx, query, string(id)); err != nil {
		return fmt.Errorf("lock session %s: %w", id, err)
	}
	return nil
}

// LockProviders implements bmdb.Tx.
func (t *tx) LockProviders(ctx context.Context, names []fleet.ProviderName, skipLocked bool) ([]fleet.ProviderName, error) {
	query := lockProviders
	if skipLocked {
		query = lockProvidersFree
	}
	locked, err := t.lock(ctx, query, texts(names))
	if err != nil {
		return nil, fmt.Errorf("lock providers: %w", err)
	}
	return named[fleet.ProviderName](locked), nil
}

// LockMachines implements bmdb.Tx.
func (t *tx) LockMachines(ctx context.Context, ids []fleet.MachineID, skipLocked bool) ([]fleet.MachineID, error) {
	query := lockMachines
	if skipLocked {
		query = lockMachinesFree
	}
	locked, err := t.lock(ctx, query, texts(ids))
	if err != nil {
		return nil, fmt.Errorf("lock machines: %w", err)
	}
	return named[fleet.MachineID](locked), nil
}

// lock returns the keys of the rows that were locked, in their order.
func (t *tx) lock(ctx context.Context, query string, keys any) (locked []string, err error) {
	if err := t.ready(ctx); err != nil {
		return nil, err
	}
	rows, err := t.conn.QueryContext(ctx, query, keys)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var key string
		if err := rows.Scan(&key); err != nil {
			return nil, err
		}
		locked = append(locked, key)
	}
	return locked, rows.Err()
}

func texts[T ~string](list []T) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = string(s)
	}
	return out
}

func named[T ~string](list []string) []T {
	out := make([]T, len(list))
	for i, s := range list {
		out[i] = T(s)
	}
	return out
}
