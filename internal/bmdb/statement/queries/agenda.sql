-- name: GetAgenda :many
SELECT process, due_at FROM agenda WHERE subject = sqlc.arg(subject) ORDER BY process;

-- name: PutAgenda :exec
INSERT INTO agenda (subject, process, provider, due_at)
VALUES (sqlc.arg(subject), sqlc.arg(process), sqlc.arg(provider), sqlc.arg(due_at))
ON CONFLICT (subject, process) DO UPDATE SET due_at = excluded.due_at;

-- name: DeleteAgenda :exec
DELETE FROM agenda WHERE subject = sqlc.arg(subject) AND process = sqlc.arg(process);

-- name: ListDue :many
SELECT subject, due_at FROM agenda
WHERE process = sqlc.arg(process) AND provider = sqlc.arg(provider) AND due_at >= sqlc.arg(lowest) AND due_at <= sqlc.arg(now)
ORDER BY due_at, subject LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- The page of due rows behind the one that is given.
-- name: ListDueAfter :many
SELECT subject, due_at FROM agenda
WHERE process = sqlc.arg(process) AND provider = sqlc.arg(provider) AND due_at >= sqlc.arg(after_due_at) AND due_at <= sqlc.arg(now)
  AND (due_at > sqlc.arg(after_due_at) OR subject > sqlc.arg(after_subject))
ORDER BY due_at, subject LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- name: NextDue :many
SELECT due_at FROM agenda
WHERE process = sqlc.arg(process) AND provider = sqlc.arg(provider) AND due_at >= sqlc.arg(lowest)
ORDER BY due_at LIMIT 1;

-- name: CountDue :one
SELECT count(*) AS n, CAST(COALESCE(min(due_at), 0) AS BIGINT) AS oldest FROM agenda
WHERE process = sqlc.arg(process) AND provider = sqlc.arg(provider) AND due_at <= sqlc.arg(now);

-- name: PutState :exec
INSERT INTO machine_state (machine, provider, state, reason, since, policy)
VALUES (sqlc.arg(machine), sqlc.arg(provider), sqlc.arg(state), sqlc.arg(reason), sqlc.arg(since), sqlc.arg(policy))
ON CONFLICT (machine) DO UPDATE
SET state = excluded.state, reason = excluded.reason, since = excluded.since, policy = excluded.policy;

-- name: DeleteState :exec
DELETE FROM machine_state WHERE machine = sqlc.arg(machine);

-- name: ListOlderPolicy :many
SELECT machine FROM machine_state WHERE policy < sqlc.arg(policy) ORDER BY policy, machine LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- name: CountStates :many
SELECT provider, state, count(*) AS n FROM machine_state GROUP BY provider, state;

-- name: GetBackoffs :many
SELECT process, not_before, lasts, cause, failures FROM backoff WHERE subject = sqlc.arg(subject) ORDER BY process;

-- name: PutBackoff :exec
INSERT INTO backoff (subject, process, not_before, lasts, cause, failures)
VALUES (sqlc.arg(subject), sqlc.arg(process), sqlc.arg(not_before), sqlc.arg(lasts), sqlc.arg(cause), sqlc.arg(failures))
ON CONFLICT (subject, process) DO UPDATE
SET not_before = excluded.not_before, lasts = excluded.lasts, cause = excluded.cause, failures = excluded.failures;

-- name: DeleteBackoff :execrows
DELETE FROM backoff WHERE subject = sqlc.arg(subject) AND process = sqlc.arg(process);

-- name: CountBackingOff :many
SELECT process, count(*) AS n FROM backoff WHERE not_before > sqlc.arg(now) GROUP BY process;

-- Since when the machine that is in its state for longest is, for each state.
-- name: ListOldestByState :many
SELECT state, CAST(min(since) AS BIGINT) AS since FROM machine_state GROUP BY state;
