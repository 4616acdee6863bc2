package postgres

import (
	"context"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
)

// The statements on many rows. Each column of the rows is one array, which costs the server no
// parsing and the client one round trip, however many rows there are.
var (
	getMachines = "SELECT " + names[statement.MachineRecord]() + " FROM machine_record WHERE id = ANY(CAST($1 AS TEXT[]))"

	listMachines = "SELECT " + names[statement.MachineLine]() + " FROM machine_line WHERE id = ANY(CAST($1 AS TEXT[]))"

	getAllBackoffs = "SELECT " + names[statement.Backoff]() + ` FROM backoff
WHERE subject = ANY(CAST($1 AS TEXT[])) ORDER BY subject, process`

	getMachinesHeld = "SELECT " + names[statement.GetMachineHeldRow]() + ` FROM machine
WHERE id = ANY(CAST($2 AS TEXT[])) AND session = $1`

	updateMachines = `UPDATE machine SET epoch = v.epoch, session = v.session, process = v.process, limited = v.limited,
  since = v.since, why = v.why, revision = machine.revision + 1,
  due_agent_start = v.due_agent_start, due_install = v.due_install, due_operation = v.due_operation, due_recovery = v.due_recovery,
  due_probe = v.due_probe
FROM ` + table[statement.UpdateMachineParams](1) + `
WHERE machine.id = v.id AND machine.epoch = v.was_epoch AND machine.session = v.was_session AND machine.revision = v.was_revision`

	moveAgenda = "WITH gone AS (DELETE FROM agenda USING " + table[statement.DeleteAgendaParams](1) + `
  WHERE agenda.process = v.process AND agenda.due_at = v.due_at AND agenda.subject = v.subject)
INSERT INTO agenda ` + values[statement.InsertAgendaParams](4)

	insertHistories = "INSERT INTO history " + values[statement.InsertHistoryParams](1)

	putStates = "INSERT INTO machine_state " + values[statement.PutStateParams](1) + `
ON CONFLICT (machine) DO UPDATE
SET state = excluded.state, reason = excluded.reason, since = excluded.since, policy = excluded.policy`

	insertStateCounts = "INSERT INTO state_count " + values[statement.InsertStateCountParams](1)

	putBackoffs = "INSERT INTO backoff " + values[statement.PutBackoffParams](1) + `
ON CONFLICT (subject, process) DO UPDATE
SET not_before = excluded.not_before, lasts = excluded.lasts, cause = excluded.cause, failures = excluded.failures,
  unanswered_since = excluded.unanswered_since, unanswered_at = excluded.unanswered_at, answered = excluded.answered, since = excluded.since`

	deleteBackoffs = "DELETE FROM backoff USING " + table[statement.DeleteBackoffParams](1) + `
WHERE backoff.subject = v.subject AND backoff.process = v.process`

	flushAllSeen = "UPDATE agent_last_seen SET last_at = v.last_at FROM " + table[statement.FlushSeenParams](1) + `
WHERE agent_last_seen.machine = v.machine AND agent_last_seen.takeover_generation = v.takeover_generation
  AND agent_last_seen.last_at < v.last_at`
)

// Many implements bmdb.Engine.
func (e *Engine) Many(db statement.DBTX) statement.Many {
	return statement.Many{
		GetMachines:    find[statement.MachineRecord](db, getMachines),
		ListMachines:   find[statement.MachineLine](db, listMachines),
		GetAllBackoffs: find[statement.Backoff](db, getAllBackoffs),
		GetMachinesHeld: func(ctx context.Context, session string, ids []string) ([]statement.GetMachineHeldRow, error) {
			return query[statement.GetMachineHeldRow](ctx, db, getMachinesHeld, session, ids)
		},
		UpdateMachines: func(ctx context.Context, rows []statement.UpdateMachineParams) (int64, error) {
			result, err := db.ExecContext(ctx, updateMachines, arrays(rows)...)
			if err != nil {
				return 0, err
			}
			return result.RowsAffected()
		},
		MoveAgenda: func(ctx context.Context, gone []statement.DeleteAgendaParams, come []statement.InsertAgendaParams) error {
			_, err := db.ExecContext(ctx, moveAgenda, append(arrays(gone), arrays(come)...)...)
			return err
		},
		InsertHistories:   write[statement.InsertHistoryParams](db, insertHistories),
		PutStates:         write[statement.PutStateParams](db, putStates),
		InsertStateCounts: write[statement.InsertStateCountParams](db, insertStateCounts),
		PutBackoffs:       write[statement.PutBackoffParams](db, putBackoffs),
		DeleteBackoffs:    write[statement.DeleteBackoffParams](db, deleteBackoffs),
		FlushAllSeen:      write[statement.FlushSeenParams](db, flushAllSeen),
	}
}

// write runs a statement on rows.
func write[R any](db statement.DBTX, text string) func(context.Context, []R) error {
	return func(ctx context.Context, rows []R) error {
		_, err := db.ExecContext(ctx, text, arrays(rows)...)
		return err
	}
}

// find runs a query by keys.
func find[R any](db statement.DBTX, text string) func(context.Context, []string) ([]R, error) {
	return func(ctx context.Context, keys []string) ([]R, error) { return query[R](ctx, db, text, keys) }
}
