package bmdb

import (
	"context"
	"fmt"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// LeaveOrder says why the agent is to restart the machine into the system on its disk, which only
// one in memory is told; "": it is not to. KindForbidden for every agent but the one in charge. It
// writes nothing: what the order follows from is durable already, so it can be given again and
// again.
func (db *DB) LeaveOrder(ctx context.Context, a AgentIdentity) (why string, err error) {
	return read(ctx, db.view, "look for an order to leave", func(ctx context.Context, t *transaction) (why string, err error) {
		m, err := t.loadOf(ctx, a)
		if err != nil {
			return "", err
		}
		env, err := t.environment(ctx)
		return lifecycle.Leaves(m.facts, env, t.Now()), err
	})
}

// RecordBack records that the installed system of before a reinstall that was called off was seen
// to be up, and that no agent of ours is on it. It changes nothing when the machine is not waited
// for any more, because a person has asked for something else.
func RecordBack() Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
		r := c.machine.facts
		if !lifecycle.Returning(r) {
			return nil
		}
		machine := string(r.ID)
		if err := t.q.SetInstalledAgain(ctx, statement.SetInstalledAgainParams{Machine: machine, At: micros(t.Now())}); err != nil {
			return err
		}
		// What probes have found of it before says nothing of it now.
		if err := t.q.DropProbe(ctx, machine); err != nil {
			return err
		}
		c.addHistory(t, r.ID, fleet.EventBack, fmt.Sprintf("install generation %d, attempt %d: generation %d was called off before it wrote anything",
			r.Installed.Generation, r.Installed.Attempt, r.InstallRequest.Generation))
		return nil
	}}
}
