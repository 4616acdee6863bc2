-- name: InsertSession :exec
INSERT INTO session (id, component, host, pid, lease, started_at, extended_at, deadline_at, ended_at, cause)
VALUES (sqlc.arg(id), sqlc.arg(component), sqlc.arg(host), sqlc.arg(pid), sqlc.arg(lease), sqlc.arg(started_at), sqlc.arg(started_at),
  sqlc.arg(deadline_at), 0, '');

-- name: ExtendSession :execrows
UPDATE session SET extended_at = sqlc.arg(extended_at), deadline_at = sqlc.arg(deadline_at)
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

-- name: ListHeldLanes :many
SELECT subject, lane, epoch, process, since FROM lane WHERE session = sqlc.arg(session) AND session <> '' ORDER BY subject, lane
LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- name: CountHeldLanes :one
SELECT count(*) FROM lane WHERE session = sqlc.arg(session) AND session <> '';

-- A session that ended without freeing its lanes yet (its collector died in between).
-- name: ListAbandonedLanes :many
SELECT l.subject, l.lane, l.session FROM lane l JOIN session s ON s.id = l.session
WHERE l.session <> '' AND s.ended_at > 0 ORDER BY l.session, l.subject LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- name: DeleteEndedSessions :execrows
DELETE FROM session WHERE id IN (
  SELECT s.id FROM session s WHERE s.ended_at > 0 AND s.ended_at < sqlc.arg(before)
    AND NOT EXISTS (SELECT 1 FROM lane l WHERE l.session = s.id AND l.session <> '')
  ORDER BY s.id LIMIT CAST(sqlc.arg(max_rows) AS BIGINT)
);
