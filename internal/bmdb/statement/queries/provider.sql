-- The first one to register a provider says what it is.
-- name: InsertProvider :exec
INSERT INTO provider (name, kind, max_machines, created_at, last_pass_at, last_update_at, pass_result, machines)
VALUES (sqlc.arg(name), sqlc.arg(kind), sqlc.arg(max_machines), sqlc.arg(created_at), 0, 0, '', 0)
ON CONFLICT (name) DO NOTHING;

-- name: SetMaxMachines :exec
UPDATE provider SET max_machines = sqlc.arg(max_machines) WHERE name = sqlc.arg(name);

-- name: GetProvider :one
SELECT * FROM provider WHERE name = sqlc.arg(name);

-- name: ListProviders :many
SELECT * FROM provider ORDER BY name;

-- name: CountChanging :one
SELECT count(*) FROM fact_provided WHERE provider = sqlc.arg(provider) AND status IN ('creating', 'deleting', 'off');

-- name: SetLastPass :exec
UPDATE provider SET last_pass_at = sqlc.arg(at) WHERE name = sqlc.arg(name);

-- name: SetLastUpdate :exec
UPDATE provider SET last_update_at = sqlc.arg(at) WHERE name = sqlc.arg(name);

-- name: SetPassResult :exec
UPDATE provider SET pass_result = sqlc.arg(result) WHERE name = sqlc.arg(name);

-- name: AddMachines :exec
UPDATE provider SET machines = machines + sqlc.arg(added) WHERE name = sqlc.arg(name);

-- name: CountProviderMachines :one
SELECT count(*) FROM machine WHERE provider = sqlc.arg(provider);

-- name: ListProviderLanes :many
SELECT l.lane, l.epoch, l.session, l.process, l.since, CAST(COALESCE(s.component, '') AS TEXT) AS component,
  CAST(COALESCE(s.host, '') AS TEXT) AS host, CAST(COALESCE(s.deadline_at, 0) AS BIGINT) AS deadline_at,
  CAST(COALESCE(s.ended_at, 1) AS BIGINT) AS ended_at
FROM lane l LEFT JOIN session s ON s.id = l.session
WHERE l.subject = sqlc.arg(subject) AND l.session <> '' ORDER BY l.lane;

-- name: InsertIntent :exec
INSERT INTO intent (machine, provider, capacity, token, opened_at, planned_at, called_at, calls, rejected)
VALUES (sqlc.arg(machine), sqlc.arg(provider), sqlc.arg(capacity), sqlc.arg(token), sqlc.arg(opened_at), sqlc.arg(planned_at), 0, 0, 0);

-- name: GetIntent :one
SELECT * FROM intent WHERE machine = sqlc.arg(machine);

-- name: GetIntentByCapacity :many
SELECT * FROM intent WHERE provider = sqlc.arg(provider) AND capacity = sqlc.arg(capacity);

-- name: ListIntents :many
SELECT * FROM intent WHERE provider = sqlc.arg(provider) ORDER BY machine;

-- name: CountIntents :one
SELECT count(*) FROM intent WHERE provider = sqlc.arg(provider);

-- name: SetIntentCalls :exec
UPDATE intent SET called_at = sqlc.arg(called_at), calls = sqlc.arg(calls), rejected = sqlc.arg(rejected)
WHERE machine = sqlc.arg(machine);

-- name: DeleteIntent :execrows
DELETE FROM intent WHERE machine = sqlc.arg(machine);

-- name: InsertToken :exec
INSERT INTO token (token, provider, machine, capacity, opened_at, called_at, closed_at, outcome)
VALUES (sqlc.arg(token), sqlc.arg(provider), sqlc.arg(machine), sqlc.arg(capacity), sqlc.arg(opened_at), 0, 0, '');

-- name: CallToken :exec
UPDATE token SET called_at = sqlc.arg(called_at) WHERE token = sqlc.arg(token) AND called_at = 0;

-- name: CloseToken :exec
UPDATE token SET closed_at = sqlc.arg(closed_at), outcome = sqlc.arg(outcome) WHERE token = sqlc.arg(token);

-- name: GetToken :one
SELECT * FROM token WHERE token = sqlc.arg(token);

-- name: ListClosedTokens :many
SELECT token, machine FROM token WHERE provider = sqlc.arg(provider) AND closed_at > 0 ORDER BY token;

-- name: PutPenalty :exec
INSERT INTO penalty (provider, capacity, until, cause)
VALUES (sqlc.arg(provider), sqlc.arg(capacity), sqlc.arg(until), sqlc.arg(cause))
ON CONFLICT (provider, capacity) DO UPDATE SET until = excluded.until, cause = excluded.cause;

-- name: DeletePastPenalties :exec
DELETE FROM penalty WHERE provider = sqlc.arg(provider) AND until <= sqlc.arg(now);

-- name: ListPenalties :many
SELECT capacity, until, cause FROM penalty WHERE provider = sqlc.arg(provider) AND until > sqlc.arg(now) ORDER BY capacity;

-- name: ListProviderDiscrepancies :many
SELECT * FROM discrepancy WHERE provider = sqlc.arg(provider) ORDER BY kind, provider_id, machine;

-- name: ListDiscrepancies :many
SELECT * FROM discrepancy ORDER BY provider, kind, provider_id, machine;

-- name: PutDiscrepancy :exec
INSERT INTO discrepancy (provider, kind, provider_id, machine, since, evidence, remedy)
VALUES (sqlc.arg(provider), sqlc.arg(kind), sqlc.arg(provider_id), sqlc.arg(machine), sqlc.arg(since), sqlc.arg(evidence), sqlc.arg(remedy))
ON CONFLICT (provider, kind, provider_id, machine) DO UPDATE SET evidence = excluded.evidence, remedy = excluded.remedy;

-- name: DeleteDiscrepancy :exec
DELETE FROM discrepancy
WHERE provider = sqlc.arg(provider) AND kind = sqlc.arg(kind) AND provider_id = sqlc.arg(provider_id) AND machine = sqlc.arg(machine);
