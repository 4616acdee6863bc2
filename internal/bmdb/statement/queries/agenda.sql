-- name: GetAgenda :many
SELECT process, due_at FROM agenda WHERE subject = sqlc.arg(subject) ORDER BY process;

-- name: DeleteAgenda :exec
DELETE FROM agenda WHERE subject = sqlc.arg(subject) AND process = sqlc.arg(process);

-- The page of due rows behind the one that is given, whatever their providers.
-- name: ListDueAfter :many
SELECT subject, provider, due_at FROM agenda
WHERE process = sqlc.arg(process) AND due_at <= sqlc.arg(now)
  AND (due_at, subject) > (CAST(sqlc.arg(after_due_at) AS BIGINT), CAST(sqlc.arg(after_subject) AS TEXT))
ORDER BY due_at, subject LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- The next rows, due or not, behind the one that is given.
-- name: ListNextAfter :many
SELECT subject, provider, due_at FROM agenda
WHERE process = sqlc.arg(process)
  AND (due_at, subject) > (CAST(sqlc.arg(after_due_at) AS BIGINT), CAST(sqlc.arg(after_subject) AS TEXT))
ORDER BY due_at, subject LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- name: DeleteState :many
DELETE FROM machine_state WHERE machine = sqlc.arg(machine) RETURNING provider, state;

-- name: ListOlderPolicy :many
SELECT machine FROM machine_state WHERE policy < sqlc.arg(policy) ORDER BY policy, machine LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- name: CountStates :many
SELECT provider, state, CAST(sum(n) AS BIGINT) AS n FROM state_count GROUP BY provider, state;

-- What CountStates must say.
-- name: CountStatesAnew :many
SELECT provider, state, count(*) AS n FROM machine_state GROUP BY provider, state;

-- name: CountStateCounts :many
SELECT provider, count(*) AS n FROM state_count GROUP BY provider ORDER BY provider;

-- name: ListStateCounts :many
SELECT id, state, n FROM state_count WHERE provider = sqlc.arg(provider) ORDER BY id LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- name: GetBackoffs :many
SELECT process, not_before, lasts, cause, failures FROM backoff WHERE subject = sqlc.arg(subject) ORDER BY process;

-- name: PutBackoff :exec
INSERT INTO backoff (subject, process, not_before, lasts, cause, failures)
VALUES (sqlc.arg(subject), sqlc.arg(process), sqlc.arg(not_before), sqlc.arg(lasts), sqlc.arg(cause), sqlc.arg(failures))
ON CONFLICT (subject, process) DO UPDATE
SET not_before = excluded.not_before, lasts = excluded.lasts, cause = excluded.cause, failures = excluded.failures;

-- name: DeleteBackoff :execrows
DELETE FROM backoff WHERE subject = sqlc.arg(subject) AND process = sqlc.arg(process);
