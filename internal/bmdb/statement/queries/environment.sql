-- Number of the newest policy, and what else lifecycle must know besides a machine's facts. One
-- row.
-- name: GetEnvironment :one
SELECT p.number, CAST(COALESCE(l.up_since, 0) AS BIGINT) AS up_since, CAST(COALESCE(l.valid_until, 0) AS BIGINT) AS valid_until,
  CAST(COALESCE(l.promised, 0) AS BIGINT) AS promised,
  CAST(COALESCE(l.listened_since, 0) AS BIGINT) AS listened_since, CAST(COALESCE(l.listened_until, 0) AS BIGINT) AS listened_until,
  CAST(COALESCE(l.full_since, 0) AS BIGINT) AS full_since, CAST(COALESCE(l.full_until, 0) AS BIGINT) AS full_until,
  CAST(COALESCE(r.evidence, '') AS TEXT) AS restored,
  CAST(COALESCE(h.at, 0) AS BIGINT) AS hold_at, CAST(COALESCE(h.until, 0) AS BIGINT) AS hold_until,
  CAST(COALESCE(h.actor, '') AS TEXT) AS hold_actor, CAST(COALESCE(h.reason, '') AS TEXT) AS hold_reason,
  CAST(CASE WHEN h.cause_at = h.at THEN h.cause ELSE '' END AS TEXT) AS hold_cause
FROM policy p LEFT JOIN listener l ON l.id = 1 LEFT JOIN restored r ON r.id = 1 LEFT JOIN recovery_hold h ON h.id = 1
ORDER BY p.number DESC LIMIT 1;

-- Newest first.
-- name: ListPolicies :many
SELECT at, body FROM policy WHERE number <= sqlc.arg(number) ORDER BY number DESC LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- name: InsertPolicy :execrows
INSERT INTO policy (number, at, body) VALUES (sqlc.arg(number), sqlc.arg(at), sqlc.arg(body)) ON CONFLICT (number) DO NOTHING;

-- The row is there from the first listener on.
-- name: InsertListener :exec
INSERT INTO listener (id, up_since, valid_until, promised) VALUES (1, 0, 0, 0) ON CONFLICT (id) DO NOTHING;

-- A write that changes nothing takes the row's lock on every engine, and returns what the row says
-- once it is had: of the row itself, no later statement says more (rule 1).
-- name: LockListener :one
UPDATE listener SET id = id WHERE id = 1
RETURNING up_since, valid_until, promised, promised_until, promised_less, full_since, full_until, listened_since, listened_until;

-- name: SetListener :exec
UPDATE listener SET up_since = sqlc.arg(up_since), valid_until = sqlc.arg(valid_until), promised = sqlc.arg(promised),
  promised_until = sqlc.arg(promised_until), promised_less = sqlc.arg(promised_less),
  listened_since = sqlc.arg(listened_since), listened_until = sqlc.arg(listened_until) WHERE id = 1;

-- name: SetListenerFull :exec
UPDATE listener SET full_since = sqlc.arg(full_since), full_until = sqlc.arg(full_until), valid_until = sqlc.arg(valid_until) WHERE id = 1;

-- name: PutRestored :exec
INSERT INTO restored (id, at, evidence) VALUES (1, sqlc.arg(at), sqlc.arg(evidence))
ON CONFLICT (id) DO UPDATE SET evidence = excluded.evidence;

-- When it was noticed that the database looks restored; no row: it does not.
-- name: ListRestoredAt :many
SELECT at FROM restored;

-- name: DeleteRestored :exec
DELETE FROM restored WHERE id = 1;

-- The latest instant that the database has seen.
-- name: ListClocks :many
SELECT clock FROM database_mark;

-- The newest instant that providers, and sessions that live, were written at; 0: there are none.
-- name: NewestWrite :one
SELECT CAST(COALESCE(max(w.at), 0) AS BIGINT) AS at FROM (
  SELECT p.last_pass_at AS at FROM provider AS p UNION ALL SELECT p.last_update_at FROM provider AS p
  UNION ALL SELECT s.extended_at FROM session AS s WHERE s.ended_at = 0) AS w;

-- name: SetClock :exec
UPDATE database_mark SET clock = sqlc.arg(now) WHERE clock < sqlc.arg(now);

-- name: InsertAgentAuthority :exec
INSERT INTO agent_authority (id, at, fingerprint) VALUES (1, sqlc.arg(at), sqlc.arg(fingerprint)) ON CONFLICT (id) DO NOTHING;

-- name: GetAgentAuthority :one
SELECT fingerprint FROM agent_authority WHERE id = 1;

-- name: PutAgentAuthority :exec
INSERT INTO agent_authority (id, at, fingerprint) VALUES (1, sqlc.arg(at), sqlc.arg(fingerprint))
ON CONFLICT (id) DO UPDATE SET at = excluded.at, fingerprint = excluded.fingerprint;
