package bmdb

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// withheldBatch is how many machines Withheld reads at a time.
const withheldBatch = 500

// Withheld is work that waits because the database looks restored or copied.
type Withheld struct {
	Machine fleet.MachineID
	Name    string
	Process fleet.Process
	// Reason is why it would be done.
	Reason string
}

// Withheld goes through all machines and returns what goes on after AcceptRestore: operations and
// installs that are open, agent starts and repairs that are due by now, and agent starts of
// machines that ought to call and have not been heard since the database came back: these become
// due when their silence counts. What became of them since the backup is not known; perhaps they
// were installed, or released.
func (db *DB) Withheld(ctx context.Context) (withheld []Withheld, err error) {
	for after, more := "", true; more; {
		var batch []Withheld
		var ids []string
		err := db.view(ctx, "withheld", func(ctx context.Context, t *transaction) (err error) {
			batch, ids, err = t.withheld(ctx, after)
			return err
		})
		if err != nil {
			return nil, err
		}
		withheld = append(withheld, batch...)
		if more = len(ids) == withheldBatch; more {
			after = ids[len(ids)-1]
		}
	}
	return withheld, nil
}

// withheld returns what goes on after AcceptRestore at the next machines after one, and which those
// machines are.
func (t *transaction) withheld(ctx context.Context, after string) (withheld []Withheld, ids []string, err error) {
	ids, err = t.q.ListMachineIDsAfter(ctx, statement.ListMachineIDsAfterParams{After: after, MaxRows: withheldBatch})
	if err != nil {
		return nil, nil, err
	}
	machines := converted(ids, func(id string) fleet.MachineID { return fleet.MachineID(id) })
	records, err := t.loadAll(ctx, machines)
	if err != nil {
		return nil, nil, err
	}
	accepted, err := t.environment(ctx)
	if err != nil {
		return nil, nil, err
	}
	accepted.Restored = ""
	since, err := t.q.ListRestoredAt(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, id := range machines {
		now, err := t.judge(ctx, records[id])
		if err != nil {
			return nil, nil, err
		}
		r := records[id].facts
		then := lifecycle.Decide(r, accepted, t.Now())
		before := len(withheld)
		for _, process := range []fleet.Process{fleet.ProcessOperation, fleet.ProcessInstall, fleet.ProcessRecovery, fleet.ProcessAgentStart} {
			d := then.For(process)
			asked := process == fleet.ProcessOperation || process == fleet.ProcessInstall // else a repair
			goesOn := d.Verdict == lifecycle.Due || asked && d.Verdict.Scheduled()
			if goesOn && !now.For(process).Verdict.Scheduled() {
				withheld = append(withheld, Withheld{Machine: id, Name: r.Name(), Process: process, Reason: d.Reason})
			}
		}
		unheard := len(since) > 0 && (r.AgentSeen == nil || r.AgentSeen.LastAt.Before(instant(since[0])))
		if then.State.Calls() && unheard && len(withheld) == before {
			withheld = append(withheld, Withheld{
				Machine: id, Name: r.Name(), Process: fleet.ProcessAgentStart,
				Reason: fmt.Sprintf("it was %s, and has not been heard since the database came back at %s: nobody here knows what was done to it meanwhile",
					then.State.Words(), fleet.Instant(instant(since[0]))),
			})
		}
	}
	return withheld, ids, nil
}

// AcceptRestore says that the database, as it is, is the one that counts: whatever waited because
// it looked restored or copied may go on. KindConflict when it does not look so.
func (db *DB) AcceptRestore(ctx context.Context, actor string) error {
	env, err := db.Environment(ctx)
	if err != nil {
		return err
	}
	if env.Restored == "" {
		return fleet.Errorf(fleet.KindConflict, "the database does not look restored or copied: there is nothing to accept")
	}
	if err := db.engine.AcceptRestore(ctx); err != nil {
		return err
	}
	err = db.update(ctx, "accept restore", func(ctx context.Context, t *transaction) error {
		if err := t.q.DeleteRestored(ctx); err != nil {
			return err
		}
		if err := t.q.SetClock(ctx, micros(t.Now())); err != nil {
			return err
		}
		return t.renumber(ctx)
	})
	if err != nil {
		return err
	}
	db.logger.WarnContext(ctx, "the restored database was accepted", slog.String("actor", actor),
		slog.String("evidence", env.Restored))
	return nil
}
