package postgres

import (
	"context"
	"database/sql"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
)

// many are the statements on many rows. Each column of the rows is one array, which costs the
// server no parsing and the client one round trip, however many rows there are.
type many struct{ db statement.DBTX }

var _ statement.Many = many{}

// Many implements bmdb.Engine.
func (e *Engine) Many(db statement.DBTX) statement.Many { return many{db} }

// column returns one column of the rows.
func column[R any, T string | int64](rows []R, of func(*R) T) []T {
	list := make([]T, len(rows))
	for i := range rows {
		list[i] = of(&rows[i])
	}
	return list
}

// query runs a query and scans each row into what fields returns of it.
func query[R any](ctx context.Context, db statement.DBTX, fields func(*R) []any, text string, args ...any) (found []R, err error) {
	rows, err := db.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var r R
		if err := rows.Scan(fields(&r)...); err != nil {
			return nil, err
		}
		found = append(found, r)
	}
	return found, rows.Err()
}

func (m many) exec(ctx context.Context, text string, args ...any) (sql.Result, error) {
	return m.db.ExecContext(ctx, text, args...)
}

const getMachines = `SELECT id, provider, provider_id, created_at, takeover_generation,
  epoch, session, process, since, why, note, revision, due_agent_start, due_install, due_recovery,
  state, state_reason, state_since, state_policy,
  intent_capacity, intent_token, intent_opened_at, intent_planned_at, intent_called_at, intent_calls, intent_rejected,
  provided_at, provided_created_at, provided_active_at, provided_status, provided_detail, provided_hostname, provided_address,
  provided_location, provided_capacity, provided_host_keys,
  started_at, started_generation, started_key, started_version, started_boot_id,
  seen_generation, seen_first_at, seen_boot_id, seen_last_at, hardware_first_at, hardware_at, hardware_digest,
  request_generation, request_at, request_actor, request_image, request_root_disk,
  attempt_generation, attempt_attempt, attempt_at, attempt_secret_hash,
  report_generation, report_attempt, report_at, report_ok, report_error, report_disk, report_lasted, report_bytes,
  installed_generation, installed_attempt, installed_at, installed_boot_id, quarantine_at, quarantine_actor, quarantine_reason,
  session_component, session_host, session_deadline_at, session_ended_at
FROM machine_record WHERE id = ANY(CAST($1 AS TEXT[]))`

func (m many) GetMachines(ctx context.Context, ids []string) ([]statement.MachineRecord, error) {
	return query(ctx, m.db, func(r *statement.MachineRecord) []any {
		return []any{
			&r.ID, &r.Provider, &r.ProviderID, &r.CreatedAt, &r.TakeoverGeneration,
			&r.Epoch, &r.Session, &r.Process, &r.Since, &r.Why, &r.Note, &r.Revision, &r.DueAgentStart, &r.DueInstall, &r.DueRecovery,
			&r.State, &r.StateReason, &r.StateSince, &r.StatePolicy,
			&r.IntentCapacity, &r.IntentToken, &r.IntentOpenedAt, &r.IntentPlannedAt, &r.IntentCalledAt, &r.IntentCalls, &r.IntentRejected,
			&r.ProvidedAt, &r.ProvidedCreatedAt, &r.ProvidedActiveAt, &r.ProvidedStatus, &r.ProvidedDetail, &r.ProvidedHostname, &r.ProvidedAddress,
			&r.ProvidedLocation, &r.ProvidedCapacity, &r.ProvidedHostKeys,
			&r.StartedAt, &r.StartedGeneration, &r.StartedKey, &r.StartedVersion, &r.StartedBootID,
			&r.SeenGeneration, &r.SeenFirstAt, &r.SeenBootID, &r.SeenLastAt, &r.HardwareFirstAt, &r.HardwareAt, &r.HardwareDigest,
			&r.RequestGeneration, &r.RequestAt, &r.RequestActor, &r.RequestImage, &r.RequestRootDisk,
			&r.AttemptGeneration, &r.AttemptAttempt, &r.AttemptAt, &r.AttemptSecretHash,
			&r.ReportGeneration, &r.ReportAttempt, &r.ReportAt, &r.ReportOk, &r.ReportError, &r.ReportDisk, &r.ReportLasted, &r.ReportBytes,
			&r.InstalledGeneration, &r.InstalledAttempt, &r.InstalledAt, &r.InstalledBootID, &r.QuarantineAt, &r.QuarantineActor, &r.QuarantineReason,
			&r.SessionComponent, &r.SessionHost, &r.SessionDeadlineAt, &r.SessionEndedAt,
		}
	}, getMachines, ids)
}

const listMachines = `SELECT id, provider, provider_id, created_at, takeover_generation, state, reason, since, hostname, address,
  location, agent_version, last_at, install_generation, process
FROM machine_line WHERE id = ANY(CAST($1 AS TEXT[]))`

func (m many) ListMachines(ctx context.Context, ids []string) ([]statement.MachineLine, error) {
	return query(ctx, m.db, func(r *statement.MachineLine) []any {
		return []any{
			&r.ID, &r.Provider, &r.ProviderID, &r.CreatedAt, &r.TakeoverGeneration, &r.State, &r.Reason, &r.Since, &r.Hostname, &r.Address,
			&r.Location, &r.AgentVersion, &r.LastAt, &r.InstallGeneration, &r.Process,
		}
	}, listMachines, ids)
}

const getAllBackoffs = `SELECT subject, process, not_before, lasts, cause, failures FROM backoff
WHERE subject = ANY(CAST($1 AS TEXT[])) ORDER BY subject, process`

func (m many) GetAllBackoffs(ctx context.Context, subjects []string) ([]statement.Backoff, error) {
	return query(ctx, m.db, func(r *statement.Backoff) []any {
		return []any{&r.Subject, &r.Process, &r.NotBefore, &r.Lasts, &r.Cause, &r.Failures}
	}, getAllBackoffs, subjects)
}

const listVoid = `SELECT v.id FROM unnest(CAST($2 AS TEXT[]), CAST($3 AS BIGINT[])) AS v (id, epoch)
WHERE NOT EXISTS (SELECT 1 FROM machine m WHERE m.id = v.id AND m.session = $1 AND m.epoch = v.epoch)`

func (m many) ListVoid(ctx context.Context, session string, held []statement.Held) ([]string, error) {
	if len(held) == 0 {
		return nil, nil
	}
	return query(ctx, m.db, func(id *string) []any { return []any{id} }, listVoid, session,
		column(held, func(h *statement.Held) string { return h.Machine }), column(held, func(h *statement.Held) int64 { return h.Epoch }))
}

const getMachinesHeld = `SELECT id, process, epoch, since FROM machine WHERE id = ANY(CAST($2 AS TEXT[])) AND session = $1`

func (m many) GetMachinesHeld(ctx context.Context, session string, ids []string) ([]statement.GetMachineHeldRow, error) {
	return query(ctx, m.db, func(r *statement.GetMachineHeldRow) []any {
		return []any{&r.ID, &r.Process, &r.Epoch, &r.Since}
	}, getMachinesHeld, session, ids)
}

const updateMachines = `UPDATE machine SET epoch = v.epoch, session = v.session, process = v.process, limited = v.limited,
  since = v.since, why = v.why, note = v.note, revision = machine.revision + 1,
  due_agent_start = v.due_agent_start, due_install = v.due_install, due_recovery = v.due_recovery
FROM unnest(CAST($1 AS TEXT[]), CAST($2 AS BIGINT[]), CAST($3 AS TEXT[]), CAST($4 AS BIGINT[]), CAST($5 AS BIGINT[]), CAST($6 AS TEXT[]),
  CAST($7 AS TEXT[]), CAST($8 AS TEXT[]), CAST($9 AS BIGINT[]), CAST($10 AS TEXT[]), CAST($11 AS TEXT[]), CAST($12 AS BIGINT[]),
  CAST($13 AS BIGINT[]), CAST($14 AS BIGINT[])) AS v (id, was_epoch, was_session, was_revision, epoch, session,
  process, limited, since, why, note, due_agent_start, due_install, due_recovery)
WHERE machine.id = v.id AND machine.epoch = v.was_epoch AND machine.session = v.was_session AND machine.revision = v.was_revision`

func (m many) UpdateMachines(ctx context.Context, rows []statement.UpdateMachineParams) (int64, error) {
	type row = statement.UpdateMachineParams
	result, err := m.exec(ctx, updateMachines,
		column(rows, func(r *row) string { return r.ID }), column(rows, func(r *row) int64 { return r.WasEpoch }),
		column(rows, func(r *row) string { return r.WasSession }), column(rows, func(r *row) int64 { return r.WasRevision }),
		column(rows, func(r *row) int64 { return r.Epoch }), column(rows, func(r *row) string { return r.Session }),
		column(rows, func(r *row) string { return r.Process }), column(rows, func(r *row) string { return r.Limited }),
		column(rows, func(r *row) int64 { return r.Since }), column(rows, func(r *row) string { return r.Why }),
		column(rows, func(r *row) string { return r.Note }), column(rows, func(r *row) int64 { return r.DueAgentStart }),
		column(rows, func(r *row) int64 { return r.DueInstall }), column(rows, func(r *row) int64 { return r.DueRecovery }))
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

const moveAgenda = `WITH gone AS (
  DELETE FROM agenda USING unnest(CAST($1 AS TEXT[]), CAST($2 AS BIGINT[]), CAST($3 AS TEXT[])) AS v (process, due_at, subject)
  WHERE agenda.process = v.process AND agenda.due_at = v.due_at AND agenda.subject = v.subject)
INSERT INTO agenda (process, due_at, subject, provider)
SELECT * FROM unnest(CAST($4 AS TEXT[]), CAST($5 AS BIGINT[]), CAST($6 AS TEXT[]), CAST($7 AS TEXT[]))`

func (m many) MoveAgenda(ctx context.Context, gone []statement.DeleteAgendaParams, come []statement.InsertAgendaParams) error {
	_, err := m.exec(ctx, moveAgenda,
		column(gone, func(r *statement.DeleteAgendaParams) string { return r.Process }),
		column(gone, func(r *statement.DeleteAgendaParams) int64 { return r.DueAt }),
		column(gone, func(r *statement.DeleteAgendaParams) string { return r.Subject }),
		column(come, func(r *statement.InsertAgendaParams) string { return r.Process }),
		column(come, func(r *statement.InsertAgendaParams) int64 { return r.DueAt }),
		column(come, func(r *statement.InsertAgendaParams) string { return r.Subject }),
		column(come, func(r *statement.InsertAgendaParams) string { return r.Provider }))
	return err
}

const insertHistories = `INSERT INTO history (subject, at, actor, process, epoch, started_at, why, event, detail, retry_at, session)
SELECT * FROM unnest(CAST($1 AS TEXT[]), CAST($2 AS BIGINT[]), CAST($3 AS TEXT[]), CAST($4 AS TEXT[]), CAST($5 AS BIGINT[]),
  CAST($6 AS BIGINT[]), CAST($7 AS TEXT[]), CAST($8 AS TEXT[]), CAST($9 AS TEXT[]), CAST($10 AS BIGINT[]), CAST($11 AS TEXT[]))`

func (m many) InsertHistories(ctx context.Context, rows []statement.InsertHistoryParams) error {
	type row = statement.InsertHistoryParams
	_, err := m.exec(ctx, insertHistories,
		column(rows, func(r *row) string { return r.Subject }), column(rows, func(r *row) int64 { return r.At }),
		column(rows, func(r *row) string { return r.Actor }), column(rows, func(r *row) string { return r.Process }),
		column(rows, func(r *row) int64 { return r.Epoch }), column(rows, func(r *row) int64 { return r.StartedAt }),
		column(rows, func(r *row) string { return r.Why }), column(rows, func(r *row) string { return r.Event }),
		column(rows, func(r *row) string { return r.Detail }), column(rows, func(r *row) int64 { return r.RetryAt }),
		column(rows, func(r *row) string { return r.Session }))
	return err
}

const putStates = `INSERT INTO machine_state (machine, provider, state, reason, since, policy)
SELECT * FROM unnest(CAST($1 AS TEXT[]), CAST($2 AS TEXT[]), CAST($3 AS TEXT[]), CAST($4 AS TEXT[]), CAST($5 AS BIGINT[]), CAST($6 AS BIGINT[]))
ON CONFLICT (machine) DO UPDATE
SET state = excluded.state, reason = excluded.reason, since = excluded.since, policy = excluded.policy`

func (m many) PutStates(ctx context.Context, rows []statement.PutStateParams) error {
	type row = statement.PutStateParams
	_, err := m.exec(ctx, putStates,
		column(rows, func(r *row) string { return r.Machine }), column(rows, func(r *row) string { return r.Provider }),
		column(rows, func(r *row) string { return r.State }), column(rows, func(r *row) string { return r.Reason }),
		column(rows, func(r *row) int64 { return r.Since }), column(rows, func(r *row) int64 { return r.Policy }))
	return err
}

const insertStateCounts = `INSERT INTO state_count (provider, state, n)
SELECT * FROM unnest(CAST($1 AS TEXT[]), CAST($2 AS TEXT[]), CAST($3 AS BIGINT[]))`

func (m many) InsertStateCounts(ctx context.Context, rows []statement.InsertStateCountParams) error {
	type row = statement.InsertStateCountParams
	_, err := m.exec(ctx, insertStateCounts,
		column(rows, func(r *row) string { return r.Provider }), column(rows, func(r *row) string { return r.State }),
		column(rows, func(r *row) int64 { return r.N }))
	return err
}

func (m many) DeleteStateCounts(ctx context.Context, ids []int64) error {
	_, err := m.exec(ctx, "DELETE FROM state_count WHERE id = ANY(CAST($1 AS BIGINT[]))", ids)
	return err
}

const putBackoffs = `INSERT INTO backoff (subject, process, not_before, lasts, cause, failures)
SELECT * FROM unnest(CAST($1 AS TEXT[]), CAST($2 AS TEXT[]), CAST($3 AS BIGINT[]), CAST($4 AS BIGINT[]), CAST($5 AS TEXT[]), CAST($6 AS BIGINT[]))
ON CONFLICT (subject, process) DO UPDATE
SET not_before = excluded.not_before, lasts = excluded.lasts, cause = excluded.cause, failures = excluded.failures`

func (m many) PutBackoffs(ctx context.Context, rows []statement.PutBackoffParams) error {
	type row = statement.PutBackoffParams
	_, err := m.exec(ctx, putBackoffs,
		column(rows, func(r *row) string { return r.Subject }), column(rows, func(r *row) string { return r.Process }),
		column(rows, func(r *row) int64 { return r.NotBefore }), column(rows, func(r *row) int64 { return r.Lasts }),
		column(rows, func(r *row) string { return r.Cause }), column(rows, func(r *row) int64 { return r.Failures }))
	return err
}

const deleteBackoffs = `DELETE FROM backoff USING unnest(CAST($1 AS TEXT[]), CAST($2 AS TEXT[])) AS v (subject, process)
WHERE backoff.subject = v.subject AND backoff.process = v.process`

func (m many) DeleteBackoffs(ctx context.Context, rows []statement.DeleteBackoffParams) error {
	type row = statement.DeleteBackoffParams
	_, err := m.exec(ctx, deleteBackoffs,
		column(rows, func(r *row) string { return r.Subject }), column(rows, func(r *row) string { return r.Process }))
	return err
}

const flushAllSeen = `UPDATE agent_last_seen SET last_at = v.last_at
FROM unnest(CAST($1 AS TEXT[]), CAST($2 AS BIGINT[]), CAST($3 AS BIGINT[])) AS v (machine, takeover_generation, last_at)
WHERE agent_last_seen.machine = v.machine AND agent_last_seen.takeover_generation = v.takeover_generation
  AND agent_last_seen.last_at < v.last_at`

func (m many) FlushAllSeen(ctx context.Context, rows []statement.FlushSeenParams) error {
	type row = statement.FlushSeenParams
	_, err := m.exec(ctx, flushAllSeen,
		column(rows, func(r *row) string { return r.Machine }), column(rows, func(r *row) int64 { return r.TakeoverGeneration }),
		column(rows, func(r *row) int64 { return r.LastAt }))
	return err
}
