-- name: InsertSession :exec
INSERT INTO session (id, component, host, pid, lease, started_at, extended_at, deadline_at, ended_at, cause,
  running, freed, providers)
VALUES (sqlc.arg(id), sqlc.arg(component), sqlc.arg(host), sqlc.arg(pid), sqlc.arg(lease), sqlc.arg(started_at), sqlc.arg(started_at),
  sqlc.arg(deadline_at), 0, '', '', 0, sqlc.arg(providers));

-- name: ExtendSession :execrows
UPDATE session SET extended_at = sqlc.arg(extended_at), deadline_at = sqlc.arg(deadline_at), running = sqlc.arg(running)
WHERE id = sqlc.arg(id) AND ended_at = 0;

-- name: GetSession :one
SELECT * FROM session WHERE id = sqlc.arg(id);

-- name: EndSession :execrows
UPDATE session SET ended_at = sqlc.arg(ended_at), cause = sqlc.arg(cause) WHERE id = sqlc.arg(id) AND ended_at = 0;

-- name: ListLiveSessions :many
SELECT * FROM session WHERE ended_at = 0 ORDER BY id;

-- name: ListSessions :many
SELECT * FROM session ORDER BY id DESC LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- name: ListOverdueSessions :many
SELECT id FROM session WHERE ended_at = 0 AND deadline_at < sqlc.arg(now) ORDER BY id;

-- Sessions that have ended and through which something may still be held.
-- name: ListUnfreedSessions :many
SELECT id FROM session WHERE ended_at > 0 AND freed = 0 ORDER BY id;

-- Notes of those that hold nothing any more that it is so. A session that has ended gains nothing.
-- name: SetSessionsFreed :exec
UPDATE session SET freed = 1 WHERE ended_at > 0 AND freed = 0 AND id NOT IN (
  SELECT m.session FROM machine m WHERE m.session <> ''
  UNION SELECT l.session FROM provider_lane l WHERE l.session <> '');

-- name: DeleteEndedSessions :execrows
DELETE FROM session WHERE id IN (
  SELECT s.id FROM session s WHERE s.ended_at > 0 AND s.ended_at < sqlc.arg(before) AND s.freed = 1
  ORDER BY s.id LIMIT CAST(sqlc.arg(max_rows) AS BIGINT)
);

-- Until when each component had a session, or will have it, by the providers at which it works.
-- name: ListLastSessions :many
SELECT component, providers,
  CAST(MAX(CASE WHEN ended_at > 0 AND ended_at < deadline_at THEN ended_at ELSE deadline_at END) AS BIGINT) AS until
FROM session GROUP BY component, providers;
