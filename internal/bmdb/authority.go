package bmdb

import (
	"context"
	"log/slog"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// KeepAuthority records the authority that agents are given, by its fingerprint, unless one is
// recorded already. It returns the one that is.
func (db *DB) KeepAuthority(ctx context.Context, fingerprint string) (recorded string, err error) {
	return read(ctx, db.update, "keep authority", func(ctx context.Context, t *transaction) (string, error) {
		// See SetPolicy: who repeats this must not be told of a record that no standby has.
		if _, err := t.q.LockListener(ctx); err != nil {
			return "", err
		}
		err := t.q.InsertAgentAuthority(ctx, statement.InsertAgentAuthorityParams{At: micros(t.Now()), Fingerprint: fingerprint})
		if err != nil {
			return "", err
		}
		return t.q.GetAgentAuthority(ctx)
	})
}

// NoneRuns is KindConflict while a control plane runs. One that has neither a loop nor the janitor
// is seen by its listener, for three times as long as that takes to prove that it lives.
func (db *DB) NoneRuns(ctx context.Context) error {
	return db.view(ctx, "does none run", func(ctx context.Context, t *transaction) error {
		sessions, err := t.q.ListLiveSessions(ctx)
		if err != nil {
			return err
		}
		for _, s := range sessions {
			if s.DeadlineAt >= micros(t.Now()) {
				return fleet.Errorf(fleet.KindConflict, "a control plane runs on host %s (process %d): stop it first", s.Host, s.Pid)
			}
		}
		env, err := t.q.GetEnvironment(ctx)
		if err == nil && env.ValidUntil >= micros(t.Now()) {
			err = fleet.Errorf(fleet.KindConflict, "a control plane has listened for agents a moment ago: stop it first, and wait for a minute")
		}
		return err
	})
}

// AcceptAuthority records that agents are given this authority from now on, whatever was recorded.
// The caller makes sure that no control plane runs, which would give them another one.
func (db *DB) AcceptAuthority(ctx context.Context, actor, fingerprint string) error {
	err := db.update(ctx, "accept authority", func(ctx context.Context, t *transaction) error {
		return t.q.PutAgentAuthority(ctx, statement.PutAgentAuthorityParams{At: micros(t.Now()), Fingerprint: fingerprint})
	})
	if err != nil {
		return err
	}
	db.logger.WarnContext(ctx, "another authority of agents was accepted", slog.String("actor", actor), slog.String("fingerprint", fingerprint))
	return nil
}
