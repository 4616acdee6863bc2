-- name: PutMaintenance :exec
INSERT INTO maintenance (machine, at, until, ended, actor, reason)
VALUES (sqlc.arg(machine), sqlc.arg(at), sqlc.arg(until), 0, sqlc.arg(actor), sqlc.arg(reason))
ON CONFLICT (machine) DO UPDATE SET at = excluded.at, until = excluded.until, ended = 0, actor = excluded.actor, reason = excluded.reason;

-- name: EndMaintenance :exec
UPDATE maintenance SET until = sqlc.arg(until), ended = 1 WHERE machine = sqlc.arg(machine);

-- name: PutInstallCancel :exec
INSERT INTO install_cancel (machine, generation, at, actor, reason)
VALUES (sqlc.arg(machine), sqlc.arg(generation), sqlc.arg(at), sqlc.arg(actor), sqlc.arg(reason))
ON CONFLICT (machine) DO UPDATE SET generation = excluded.generation, at = excluded.at, actor = excluded.actor, reason = excluded.reason;

-- name: PutOperationRequest :exec
INSERT INTO operation_request (machine, number, operation, at, actor, reason, given_up)
VALUES (sqlc.arg(machine), sqlc.arg(number), sqlc.arg(operation), sqlc.arg(at), sqlc.arg(actor), sqlc.arg(reason), sqlc.arg(given_up))
ON CONFLICT (machine) DO UPDATE
SET number = excluded.number, operation = excluded.operation, at = excluded.at, actor = excluded.actor, reason = excluded.reason,
  given_up = excluded.given_up;

-- name: WasGivenUp :one
SELECT given_up FROM operation_request WHERE machine = sqlc.arg(machine);

-- name: PutOperationAttempt :exec
INSERT INTO operation_attempt (machine, number, attempt, at, boot_id, accepted_at, checked_at)
VALUES (sqlc.arg(machine), sqlc.arg(number), sqlc.arg(attempt), sqlc.arg(at), sqlc.arg(boot_id), 0, 0)
ON CONFLICT (machine) DO UPDATE
SET number = excluded.number, attempt = excluded.attempt, at = excluded.at, boot_id = excluded.boot_id, accepted_at = 0, checked_at = 0;

-- name: AcceptOperation :exec
UPDATE operation_attempt SET accepted_at = sqlc.arg(at) WHERE machine = sqlc.arg(machine) AND number = sqlc.arg(number);

-- name: CheckOperation :exec
UPDATE operation_attempt SET checked_at = sqlc.arg(at) WHERE machine = sqlc.arg(machine) AND number = sqlc.arg(number);

-- name: PutOperationReport :exec
INSERT INTO operation_report (machine, number, at, ok, detail)
VALUES (sqlc.arg(machine), sqlc.arg(number), sqlc.arg(at), sqlc.arg(ok), sqlc.arg(detail))
ON CONFLICT (machine) DO UPDATE SET number = excluded.number, at = excluded.at, ok = excluded.ok, detail = excluded.detail;

-- name: PutRepair :exec
INSERT INTO repair (machine, since, rung, at, agent_starts, reboots, power_cycles, reinstalls, takeover_generation, boot_id, refused_step)
VALUES (sqlc.arg(machine), sqlc.arg(since), sqlc.arg(rung), sqlc.arg(at), sqlc.arg(agent_starts), sqlc.arg(reboots),
  sqlc.arg(power_cycles), sqlc.arg(reinstalls), sqlc.arg(takeover_generation), sqlc.arg(boot_id), sqlc.arg(refused_step))
ON CONFLICT (machine) DO UPDATE
SET since = excluded.since, rung = excluded.rung, at = excluded.at, agent_starts = excluded.agent_starts, reboots = excluded.reboots,
  power_cycles = excluded.power_cycles, reinstalls = excluded.reinstalls, takeover_generation = excluded.takeover_generation,
  boot_id = excluded.boot_id, refused_step = excluded.refused_step;

-- name: DeleteRepair :exec
DELETE FROM repair WHERE machine = sqlc.arg(machine);

-- name: PutRecoveryRestart :exec
INSERT INTO recovery_restart (machine, at) VALUES (sqlc.arg(machine), sqlc.arg(at)) ON CONFLICT (machine, at) DO NOTHING;

-- name: DeleteRecoveryRestart :exec
DELETE FROM recovery_restart WHERE machine = sqlc.arg(machine) AND at = sqlc.arg(at);

-- name: DeleteRecoveryRestartsBefore :exec
DELETE FROM recovery_restart WHERE at < sqlc.arg(before);

-- name: CountRecoveryRestarts :one
SELECT count(*) AS n, CAST(COALESCE(min(at), 0) AS BIGINT) AS oldest FROM recovery_restart WHERE at > sqlc.arg(after);

-- name: PutRecoveryHold :exec
INSERT INTO recovery_hold (id, at, until, actor, reason, cause, cause_at)
VALUES (1, sqlc.arg(at), sqlc.arg(until), sqlc.arg(actor), sqlc.arg(reason), sqlc.arg(cause), sqlc.arg(at))
ON CONFLICT (id) DO UPDATE SET at = excluded.at, until = excluded.until, actor = excluded.actor, reason = excluded.reason,
  cause = excluded.cause, cause_at = excluded.cause_at;

-- name: DeleteRecoveryHold :exec
DELETE FROM recovery_hold WHERE id = 1;

-- name: PutKnownSilence :exec
INSERT INTO known_silence (id, at) VALUES (1, sqlc.arg(at)) ON CONFLICT (id) DO UPDATE SET at = excluded.at;

-- name: DeleteKnownSilence :exec
DELETE FROM known_silence WHERE id = 1;

-- name: CountKnownSilences :one
SELECT count(*) FROM known_silence;

-- name: PutAdoption :exec
INSERT INTO adoption (provider, provider_id, at, actor, installed)
VALUES (sqlc.arg(provider), sqlc.arg(provider_id), sqlc.arg(at), sqlc.arg(actor), sqlc.arg(installed))
ON CONFLICT (provider, provider_id) DO UPDATE SET at = excluded.at, actor = excluded.actor, installed = excluded.installed;

-- name: ListAdoptions :many
SELECT provider_id, actor, installed FROM adoption WHERE provider = sqlc.arg(provider) ORDER BY provider_id;

-- name: DeleteAdoption :many
DELETE FROM adoption WHERE provider = sqlc.arg(provider) AND provider_id = sqlc.arg(provider_id)
RETURNING actor, installed;

-- name: InsertPlan :exec
INSERT INTO plan (id, at, expires_at, actor, verb, reason, machines, confirmed_at)
VALUES (sqlc.arg(id), sqlc.arg(at), sqlc.arg(expires_at), sqlc.arg(actor), sqlc.arg(verb), sqlc.arg(reason), sqlc.arg(machines), 0);

-- name: GetPlan :many
SELECT * FROM plan WHERE id = sqlc.arg(id);

-- name: ConfirmPlan :exec
UPDATE plan SET confirmed_at = sqlc.arg(at) WHERE id = sqlc.arg(id) AND confirmed_at = 0;

-- name: DeletePlansBefore :execrows
DELETE FROM plan WHERE id IN (
  SELECT p.id FROM plan p WHERE p.expires_at < sqlc.arg(before) ORDER BY p.id LIMIT CAST(sqlc.arg(max_rows) AS BIGINT)
);

-- The facts of a machine that is given back or forgotten, one table each.
-- name: DropProvided :exec
DELETE FROM fact_provided WHERE machine = sqlc.arg(machine);
-- name: DropAgentStarted :exec
DELETE FROM fact_agent_started WHERE machine = sqlc.arg(machine);
-- name: DropAgentSeen :exec
DELETE FROM fact_agent_seen WHERE machine = sqlc.arg(machine);
-- name: DropLastSeen :exec
DELETE FROM agent_last_seen WHERE machine = sqlc.arg(machine);
-- name: DropHardware :exec
DELETE FROM fact_hardware WHERE machine = sqlc.arg(machine);
-- name: DropHardwareReport :exec
DELETE FROM hardware_report WHERE machine = sqlc.arg(machine);
-- name: DropInstallRequest :exec
DELETE FROM install_request WHERE machine = sqlc.arg(machine);
-- name: DropInstallAttempt :exec
DELETE FROM install_attempt WHERE machine = sqlc.arg(machine);
-- name: DropInstallReport :exec
DELETE FROM install_report WHERE machine = sqlc.arg(machine);
-- name: DropInstallCancel :exec
DELETE FROM install_cancel WHERE machine = sqlc.arg(machine);
-- name: DropInstalled :exec
DELETE FROM installed WHERE machine = sqlc.arg(machine);
-- name: DropMaintenance :exec
DELETE FROM maintenance WHERE machine = sqlc.arg(machine);
-- name: DropOperationRequest :exec
DELETE FROM operation_request WHERE machine = sqlc.arg(machine);
-- name: DropOperationAttempt :exec
DELETE FROM operation_attempt WHERE machine = sqlc.arg(machine);
-- name: DropOperationReport :exec
DELETE FROM operation_report WHERE machine = sqlc.arg(machine);

-- 1 where an install is not wanted any more: it was called off, or a newer one was asked for.
-- name: CountUnwanted :one
SELECT count(*) FROM install_request q
WHERE q.machine = sqlc.arg(machine) AND (
  q.generation > sqlc.arg(generation)
  OR EXISTS (SELECT 1 FROM install_cancel c WHERE c.machine = q.machine AND c.generation = sqlc.arg(generation))
);
