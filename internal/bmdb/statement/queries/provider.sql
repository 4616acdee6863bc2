-- The first one to register a provider says what it is.
-- name: InsertProvider :exec
INSERT INTO provider (name, kind, max_machines, created_at, last_pass_at, last_update_at, pass_result, machines)
VALUES (sqlc.arg(name), sqlc.arg(kind), sqlc.arg(max_machines), sqlc.arg(created_at), 0, 0, '', 0)
ON CONFLICT (name) DO NOTHING;

-- name: SetLevers :exec
UPDATE provider SET levers = sqlc.arg(levers) WHERE name = sqlc.arg(name);

-- name: SetSource :exec
UPDATE provider SET source = sqlc.arg(source) WHERE name = sqlc.arg(name);

-- name: PauseProvider :exec
UPDATE provider SET paused_at = sqlc.arg(at), paused_by = sqlc.arg(actor), paused_why = sqlc.arg(reason) WHERE name = sqlc.arg(name);

-- name: SetMaxMachines :exec
UPDATE provider SET max_machines = sqlc.arg(max_machines) WHERE name = sqlc.arg(name);

-- name: GetProvider :one
SELECT * FROM provider WHERE name = sqlc.arg(name);

-- name: ListProviderNames :many
SELECT name FROM provider ORDER BY name;

-- The other providers of the same kind.
-- name: ListSiblings :many
SELECT o.name FROM provider p JOIN provider o ON o.kind = p.kind AND o.name <> p.name WHERE p.name = sqlc.arg(name) ORDER BY o.name;

-- The machines with that provider ID at other providers of the same kind, but for those that are
-- gone there. By IN, because for a join SQLite reads the whole index of provider IDs.
-- name: ListElsewhere :many
SELECT m.id, m.provider FROM machine m LEFT JOIN fact_provided f ON f.machine = m.id
WHERE m.provider IN (SELECT o.name FROM provider p JOIN provider o ON o.kind = p.kind AND o.name <> p.name WHERE p.name = sqlc.arg(name))
  AND m.provider_id = sqlc.arg(provider_id) AND m.provider_id <> '' AND COALESCE(f.status, '') <> 'gone' ORDER BY m.provider;

-- The same of the machine that a token was made for, which may not be there any more: it may turn
-- up, unless it was given back or forgotten.
-- name: ListElsewhereByToken :many
SELECT t.machine, t.provider FROM token t JOIN provider o ON o.name = t.provider
JOIN provider p ON p.kind = o.kind AND p.name <> o.name
LEFT JOIN fact_provided f ON f.machine = t.machine
WHERE t.token = sqlc.arg(token) AND p.name = sqlc.arg(name) AND t.outcome NOT IN ('released', 'forgotten')
  AND COALESCE(f.status, '') <> 'gone';

-- name: ListProviders :many
SELECT * FROM provider ORDER BY name;

-- 1 if a machine is expected to change by itself: one that is not on, only if that is so since
-- lately.
-- Each part is one search of the index, however many there are; SQLite needs the words of its
-- condition.
-- name: AnyChanging :one
SELECT count(*) FROM (
  SELECT c.machine FROM fact_provided c
  WHERE c.provider = sqlc.arg(provider) AND c.status IN ('creating', 'deleting', 'off', 'powering') AND c.status = 'creating'
  UNION ALL
  SELECT d.machine FROM fact_provided d
  WHERE d.provider = sqlc.arg(provider) AND d.status IN ('creating', 'deleting', 'off', 'powering') AND d.status = 'deleting'
  UNION ALL
  SELECT o.machine FROM fact_provided o
  WHERE o.provider = sqlc.arg(provider) AND o.status IN ('creating', 'deleting', 'off', 'powering') AND o.status = 'off' AND o.at > sqlc.arg(off_since)
  UNION ALL
  SELECT p.machine FROM fact_provided p
  WHERE p.provider = sqlc.arg(provider) AND p.status IN ('creating', 'deleting', 'off', 'powering') AND p.status = 'powering' AND p.at > sqlc.arg(off_since)
  LIMIT 1) AS changing;

-- name: InsertProviderLane :exec
INSERT INTO provider_lane (provider, process, epoch, session, since, why, note, revision, due_at)
VALUES (sqlc.arg(provider), sqlc.arg(process), 0, '', 0, '', '', 0, 0) ON CONFLICT (provider, process) DO NOTHING;

-- name: ListProviderLanes :many
SELECT l.process, l.epoch, l.session, l.since, l.why, l.revision, l.due_at,
  CAST(COALESCE(s.component, '') AS TEXT) AS session_component, CAST(COALESCE(s.host, '') AS TEXT) AS session_host,
  CAST(COALESCE(s.deadline_at, 0) AS BIGINT) AS session_deadline_at, CAST(COALESCE(s.ended_at, 1) AS BIGINT) AS session_ended_at
FROM provider_lane l LEFT JOIN session s ON s.id = l.session AND l.session <> ''
WHERE l.provider = sqlc.arg(provider) ORDER BY l.process;

-- What a provider has of its own, but for its lanes: their epochs never come twice.
-- name: DeleteProvider :exec
DELETE FROM provider WHERE name = sqlc.arg(name);

-- name: DropPenalties :exec
DELETE FROM penalty WHERE provider = sqlc.arg(provider);

-- name: DropDiscrepancies :exec
DELETE FROM discrepancy WHERE provider = sqlc.arg(provider);

-- name: DropAdoptions :exec
DELETE FROM adoption WHERE provider = sqlc.arg(provider);

-- name: DropStateCounts :exec
DELETE FROM state_count WHERE provider = sqlc.arg(provider);

-- name: DropConcurrencyLimits :exec
DELETE FROM concurrency_limit WHERE provider = sqlc.arg(provider);

-- UpdateMachine for a provider.
-- name: UpdateProviderLane :execrows
UPDATE provider_lane SET epoch = sqlc.arg(epoch), session = sqlc.arg(session), since = sqlc.arg(since), why = sqlc.arg(why),
  revision = revision + 1, due_at = sqlc.arg(due_at)
WHERE provider = sqlc.arg(provider) AND process = sqlc.arg(process)
  AND epoch = sqlc.arg(was_epoch) AND session = sqlc.arg(was_session) AND revision = sqlc.arg(was_revision);

-- What a session holds of providers.
-- name: ListProviderLanesHeld :many
SELECT provider, process, epoch, since FROM provider_lane WHERE session = sqlc.arg(session) AND session <> ''
ORDER BY provider, process;

-- name: ListAbandonedProviders :many
SELECT DISTINCT l.provider FROM provider_lane l JOIN session s ON s.id = l.session
WHERE l.session <> '' AND s.ended_at > 0 ORDER BY l.provider;

-- name: SetLastPass :exec
UPDATE provider SET last_pass_at = sqlc.arg(at) WHERE name = sqlc.arg(name);

-- name: SetCompared :exec
UPDATE provider SET compared_at = sqlc.arg(at) WHERE name = sqlc.arg(name);

-- name: SetLastUpdate :exec
UPDATE provider SET last_update_at = sqlc.arg(at) WHERE name = sqlc.arg(name);

-- name: SetPassResult :exec
UPDATE provider SET pass_result = sqlc.arg(result) WHERE name = sqlc.arg(name);

-- name: AddMachines :exec
UPDATE provider SET machines = machines + sqlc.arg(added) WHERE name = sqlc.arg(name);

-- name: CountProviderMachines :one
SELECT count(*) FROM machine WHERE provider = sqlc.arg(provider);

-- name: InsertIntent :exec
INSERT INTO intent (machine, provider, capacity, token, opened_at, planned_at, called_at, calls, rejected, configured_at)
VALUES (sqlc.arg(machine), sqlc.arg(provider), sqlc.arg(capacity), sqlc.arg(token), sqlc.arg(opened_at), sqlc.arg(planned_at), 0, 0, 0,
  sqlc.arg(configured_at));

-- name: GetIntent :one
SELECT * FROM intent WHERE machine = sqlc.arg(machine);

-- name: GetIntentByCapacity :many
SELECT * FROM intent WHERE provider = sqlc.arg(provider) AND capacity = sqlc.arg(capacity);

-- name: ListIntents :many
SELECT * FROM intent WHERE provider = sqlc.arg(provider) ORDER BY machine;

-- name: SetIntentCalls :exec
UPDATE intent SET called_at = sqlc.arg(called_at), calls = sqlc.arg(calls), rejected = sqlc.arg(rejected)
WHERE machine = sqlc.arg(machine);

-- name: DeleteIntent :exec
DELETE FROM intent WHERE machine = sqlc.arg(machine);

-- name: InsertToken :exec
INSERT INTO token (token, provider, machine, capacity, opened_at, called_at, closed_at, outcome, epoch)
VALUES (sqlc.arg(token), sqlc.arg(provider), sqlc.arg(machine), sqlc.arg(capacity), sqlc.arg(opened_at), 0, 0, '', 0);

-- name: CallToken :exec
UPDATE token SET called_at = sqlc.arg(called_at) WHERE token = sqlc.arg(token) AND called_at = 0;

-- name: CloseToken :exec
UPDATE token SET closed_at = sqlc.arg(closed_at), outcome = sqlc.arg(outcome) WHERE token = sqlc.arg(token);

-- name: GetToken :one
SELECT * FROM token WHERE token = sqlc.arg(token);

-- name: SetTokenEpoch :exec
UPDATE token SET epoch = sqlc.arg(epoch) WHERE machine = sqlc.arg(machine);

-- name: ListMachinesOfClosedTokens :many
SELECT t.machine FROM token t WHERE t.closed_at > 0 AND t.closed_at < sqlc.arg(before)
  AND NOT EXISTS (SELECT 1 FROM machine m WHERE m.id = t.machine)
ORDER BY t.token LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- Tokens of machines that are gone, closed before that instant.
-- name: DeleteClosedTokens :execrows
DELETE FROM token WHERE token IN (
  SELECT t.token FROM token t WHERE t.closed_at > 0 AND t.closed_at < sqlc.arg(before)
    AND NOT EXISTS (SELECT 1 FROM machine m WHERE m.id = t.machine)
  ORDER BY t.token LIMIT CAST(sqlc.arg(max_rows) AS BIGINT)
);

-- The longer penalty stays: who writes one may not know of the other.
-- name: PutPenalty :execrows
INSERT INTO penalty (provider, capacity, until, cause, address)
VALUES (sqlc.arg(provider), sqlc.arg(capacity), sqlc.arg(until), sqlc.arg(cause), sqlc.arg(address))
ON CONFLICT (provider, capacity) DO UPDATE SET until = excluded.until, cause = excluded.cause, address = excluded.address
WHERE penalty.until < excluded.until;

-- name: DeletePastPenalties :exec
DELETE FROM penalty WHERE provider = sqlc.arg(provider) AND until <= sqlc.arg(now);

-- Those that have an end: before is after all of them.
-- name: DeleteEndingPenalties :exec
DELETE FROM penalty WHERE provider = sqlc.arg(provider) AND until < sqlc.arg(before);

-- name: DeletePenalty :exec
DELETE FROM penalty WHERE provider = sqlc.arg(provider) AND capacity = sqlc.arg(capacity);

-- name: ListPenalties :many
SELECT capacity, until, cause, address FROM penalty WHERE provider = sqlc.arg(provider) AND until > sqlc.arg(now) ORDER BY capacity;

-- name: ListProviderDiscrepancies :many
SELECT * FROM discrepancy WHERE provider = sqlc.arg(provider) ORDER BY kind, provider_id, machine;

-- name: ListDiscrepancies :many
SELECT * FROM discrepancy ORDER BY provider, kind, provider_id, machine LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- name: PutDiscrepancy :exec
INSERT INTO discrepancy (provider, kind, provider_id, machine, since, evidence, remedy)
VALUES (sqlc.arg(provider), sqlc.arg(kind), sqlc.arg(provider_id), sqlc.arg(machine), sqlc.arg(since), sqlc.arg(evidence), sqlc.arg(remedy))
ON CONFLICT (provider, kind, provider_id, machine) DO UPDATE SET evidence = excluded.evidence, remedy = excluded.remedy;

-- name: DeleteDiscrepancy :exec
DELETE FROM discrepancy
WHERE provider = sqlc.arg(provider) AND kind = sqlc.arg(kind) AND provider_id = sqlc.arg(provider_id) AND machine = sqlc.arg(machine);

-- name: CountDiscrepancies :one
SELECT count(*) FROM (SELECT kind FROM discrepancy LIMIT CAST(sqlc.arg(max_rows) AS BIGINT)) AS d;

-- name: CountProviderDiscrepancies :one
SELECT count(*) FROM (SELECT kind FROM discrepancy WHERE provider = sqlc.arg(provider) LIMIT CAST(sqlc.arg(max_rows) AS BIGINT)) AS d;

-- What a line of the list of providers counts, the discrepancies as far as to the limit.
-- name: CountOfProvider :one
SELECT
  (SELECT count(*) FROM intent AS i WHERE i.provider = sqlc.arg(provider)) AS intents,
  (SELECT count(*) FROM penalty AS p WHERE p.provider = sqlc.arg(provider) AND p.until > sqlc.arg(now)) AS penalties,
  (SELECT count(*) FROM (
    SELECT f.kind FROM discrepancy AS f WHERE f.provider = sqlc.arg(provider) LIMIT CAST(sqlc.arg(max_rows) AS BIGINT)) AS d) AS discrepancies;

-- name: DeleteMachineDiscrepancies :exec
DELETE FROM discrepancy WHERE provider = sqlc.arg(provider) AND machine = sqlc.arg(machine);

-- name: ReleaseToken :exec
UPDATE token SET closed_at = sqlc.arg(closed_at), outcome = sqlc.arg(outcome) WHERE machine = sqlc.arg(machine);

-- Turns behind those that are reserved, from earliest on, unless the first one came after latest
-- (first_at is 0 then). earliest is at most latest, and not before not_before: so next_at is not
-- before not_before, whatever is reserved. What is beyond bogus was written by a clock that was
-- ahead.
-- name: ReserveTurns :one
INSERT INTO call_turn (call_limit, first_at, next_at, not_before)
VALUES (sqlc.arg(call_limit), sqlc.arg(earliest), CAST(sqlc.arg(earliest) AS BIGINT) + CAST(sqlc.arg(took) AS BIGINT), sqlc.arg(not_before))
ON CONFLICT (call_limit) DO UPDATE SET
  first_at = CASE WHEN call_turn.next_at > CAST(sqlc.arg(bogus) AS BIGINT) THEN CAST(sqlc.arg(earliest) AS BIGINT)
    WHEN call_turn.next_at > CAST(sqlc.arg(latest) AS BIGINT) THEN 0
    WHEN call_turn.next_at > CAST(sqlc.arg(earliest) AS BIGINT) THEN call_turn.next_at
    ELSE CAST(sqlc.arg(earliest) AS BIGINT) END,
  next_at = CASE WHEN call_turn.next_at > CAST(sqlc.arg(bogus) AS BIGINT) THEN CAST(sqlc.arg(earliest) AS BIGINT) + CAST(sqlc.arg(took) AS BIGINT)
    WHEN call_turn.next_at > CAST(sqlc.arg(latest) AS BIGINT) THEN call_turn.next_at
    WHEN call_turn.next_at > CAST(sqlc.arg(earliest) AS BIGINT) THEN call_turn.next_at + CAST(sqlc.arg(took) AS BIGINT)
    ELSE CAST(sqlc.arg(earliest) AS BIGINT) + CAST(sqlc.arg(took) AS BIGINT) END,
  not_before = CASE WHEN call_turn.not_before > CAST(sqlc.arg(bogus) AS BIGINT) OR call_turn.not_before < excluded.not_before
    THEN excluded.not_before ELSE call_turn.not_before END
RETURNING first_at, next_at, not_before;

-- name: GetTurns :one
SELECT next_at, not_before FROM call_turn WHERE call_limit = sqlc.arg(call_limit);

-- name: DeleteOldTurns :exec
DELETE FROM call_turn WHERE next_at < sqlc.arg(before);
