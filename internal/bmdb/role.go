package bmdb

import (
	"context"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// absence is for how long nobody must have had a role before it is missing. The restart of a
// control plane takes less.
const absence = time.Minute

// Missing returns the roles that no live control plane has. Their proof of life is a session of
// their component, that of the agent API its listener. The operator API has none: whoever asks,
// asks it. A role that somebody had within the last minute is not missing. In the first minute of
// this process none is, because whoever starts together with it needs a moment.
func (db *DB) Missing(ctx context.Context) ([]fleet.Role, error) {
	return read(ctx, db.view, "missing roles", func(ctx context.Context, t *transaction) ([]fleet.Role, error) {
		return t.missing(ctx)
	})
}

func (t *transaction) missing(ctx context.Context) (missing []fleet.Role, err error) {
	if t.Now().Sub(t.db.opened) < absence {
		return nil, nil
	}
	sessions, err := t.q.ListLastSessions(ctx)
	if err != nil {
		return nil, err
	}
	until := make(map[string]int64)
	for _, s := range sessions {
		until[s.Component] = s.Until
	}
	env, err := t.q.GetEnvironment(ctx)
	if err != nil {
		return nil, err
	}
	until[fleet.RoleAgentAPI.Component()] = env.ValidUntil
	since := micros(t.Now().Add(-absence))
	for _, role := range fleet.Roles() {
		if role != fleet.RoleOperatorAPI && until[role.Component()] < since {
			missing = append(missing, role)
		}
	}
	return missing, nil
}
