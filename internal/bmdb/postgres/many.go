package postgres

import (
	"context"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
)

// many are the statements on many rows. Each column of the rows is one array, which costs the
// server no parsing and the client one round trip, however many rows there are.
type many struct{ db statement.DBTX }

// Many implements bmdb.Engine.
func (e *Engine) Many(db statement.DBTX) statement.Many { return many{db} }

func (m many) exec(ctx context.Context, text string, args ...any) error {
	_, err := m.db.ExecContext(ctx, text, args...)
	return err
}

var getMachines = "SELECT " + names[statement.MachineRecord]() + " FROM machine_record WHERE id = ANY(CAST($1 AS TEXT[]))"

func (m many) GetMachines(ctx context.Context, ids []string) ([]statement.MachineRecord, error) {
	return query[statement.MachineRecord](ctx, m.db, getMachines, ids)
}

var listMachines = "SELECT " + names[statement.MachineLine]() + " FROM machine_line WHERE id = ANY(CAST($1 AS TEXT[]))"

func (m many) ListMachines(ctx context.Context, ids []string) ([]statement.MachineLine, error) {
	return query[statement.MachineLine](ctx, m.db, listMachines, ids)
}

var getAllBackoffs = "SELECT " + names[statement.Backoff]() + ` FROM backoff
WHERE subject = ANY(CAST($1 AS TEXT[])) ORDER BY subject, process`

func (m many) GetAllBackoffs(ctx context.Context, subjects []string) ([]statement.Backoff, error) {
	return query[statement.Backoff](ctx, m.db, getAllBackoffs, subjects)
}

var listVoid = "SELECT v.machine, v.epoch FROM " + table[statement.Held](1) + `
WHERE NOT EXISTS (SELECT 1 FROM machine m WHERE m.id = v.machine AND m.session = $3 AND m.epoch = v.epoch)`

func (m many) ListVoid(ctx context.Context, session string, held []statement.Held) ([]statement.Held, error) {
	if len(held) == 0 {
		return nil, nil
	}
	return query[statement.Held](ctx, m.db, listVoid, append(arrays(held), session)...)
}

var getMachinesHeld = "SELECT " + names[statement.GetMachineHeldRow]() + ` FROM machine
WHERE id = ANY(CAST($2 AS TEXT[])) AND session = $1`

func (m many) GetMachinesHeld(ctx context.Context, session string, ids []string) ([]statement.GetMachineHeldRow, error) {
	return query[statement.GetMachineHeldRow](ctx, m.db, getMachinesHeld, session, ids)
}

var updateMachines = `UPDATE machine SET epoch = v.epoch, session = v.session, process = v.process, limited = v.limited,
  since = v.since, why = v.why, note = v.note, revision = machine.revision + 1,
  due_agent_start = v.due_agent_start, due_install = v.due_install, due_operation = v.due_operation, due_recovery = v.due_recovery,
  due_probe = v.due_probe
FROM ` + table[statement.UpdateMachineParams](1) + `
WHERE machine.id = v.id AND machine.epoch = v.was_epoch AND machine.session = v.was_session AND machine.revision = v.was_revision`

func (m many) UpdateMachines(ctx context.Context, rows []statement.UpdateMachineParams) (int64, error) {
	result, err := m.db.ExecContext(ctx, updateMachines, arrays(rows)...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

var moveAgenda = "WITH gone AS (DELETE FROM agenda USING " + table[statement.DeleteAgendaParams](1) + `
  WHERE agenda.process = v.process AND agenda.due_at = v.due_at AND agenda.subject = v.subject)
INSERT INTO agenda ` + values[statement.InsertAgendaParams](4)

func (m many) MoveAgenda(ctx context.Context, gone []statement.DeleteAgendaParams, come []statement.InsertAgendaParams) error {
	return m.exec(ctx, moveAgenda, append(arrays(gone), arrays(come)...)...)
}

var insertHistories = "INSERT INTO history " + values[statement.InsertHistoryParams](1)

func (m many) InsertHistories(ctx context.Context, rows []statement.InsertHistoryParams) error {
	return m.exec(ctx, insertHistories, arrays(rows)...)
}

var putStates = "INSERT INTO machine_state " + values[statement.PutStateParams](1) + `
ON CONFLICT (machine) DO UPDATE
SET state = excluded.state, reason = excluded.reason, since = excluded.since, policy = excluded.policy`

func (m many) PutStates(ctx context.Context, rows []statement.PutStateParams) error {
	return m.exec(ctx, putStates, arrays(rows)...)
}

var insertStateCounts = "INSERT INTO state_count " + values[statement.InsertStateCountParams](1)

func (m many) InsertStateCounts(ctx context.Context, rows []statement.InsertStateCountParams) error {
	return m.exec(ctx, insertStateCounts, arrays(rows)...)
}

func (m many) DeleteStateCounts(ctx context.Context, ids []int64) error {
	return m.exec(ctx, "DELETE FROM state_count WHERE id = ANY(CAST($1 AS BIGINT[]))", ids)
}

var putBackoffs = "INSERT INTO backoff " + values[statement.PutBackoffParams](1) + `
ON CONFLICT (subject, process) DO UPDATE
SET not_before = excluded.not_before, lasts = excluded.lasts, cause = excluded.cause, failures = excluded.failures,
  unanswered_since = excluded.unanswered_since, answered = excluded.answered, since = excluded.since`

func (m many) PutBackoffs(ctx context.Context, rows []statement.PutBackoffParams) error {
	return m.exec(ctx, putBackoffs, arrays(rows)...)
}

var deleteBackoffs = "DELETE FROM backoff USING " + table[statement.DeleteBackoffParams](1) + `
WHERE backoff.subject = v.subject AND backoff.process = v.process`

func (m many) DeleteBackoffs(ctx context.Context, rows []statement.DeleteBackoffParams) error {
	return m.exec(ctx, deleteBackoffs, arrays(rows)...)
}

var flushAllSeen = "UPDATE agent_last_seen SET last_at = v.last_at FROM " + table[statement.FlushSeenParams](1) + `
WHERE agent_last_seen.machine = v.machine AND agent_last_seen.takeover_generation = v.takeover_generation
  AND agent_last_seen.last_at < v.last_at`

func (m many) FlushAllSeen(ctx context.Context, rows []statement.FlushSeenParams) error {
	return m.exec(ctx, flushAllSeen, arrays(rows)...)
}
