-- name: InsertHistory :exec
INSERT INTO history (subject, at, actor, process, epoch, started_at, why, event, detail, retry_at, session)
VALUES (sqlc.arg(subject), sqlc.arg(at), sqlc.arg(actor), sqlc.arg(process), sqlc.arg(epoch), sqlc.arg(started_at), sqlc.arg(why),
  sqlc.arg(event), sqlc.arg(detail), sqlc.arg(retry_at), sqlc.arg(session));

-- The newest rows without one kind of event ('': all kinds), looked for among as many rows of the
-- subject, the newest, as max_read says.
-- name: ListHistory :many
SELECT h.at, h.actor, h.process, h.epoch, h.started_at, h.why, h.event, h.detail, h.retry_at FROM (
  SELECT id, at, actor, process, epoch, started_at, why, event, detail, retry_at FROM history WHERE subject = sqlc.arg(subject)
  ORDER BY id DESC LIMIT CAST(sqlc.arg(max_read) AS BIGINT)) AS h
WHERE h.event <> CAST(sqlc.arg(without) AS TEXT) ORDER BY h.id DESC LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- How a work ended, looked up when its commit is repeated. It cannot have ended long before it
-- started, whatever was done to the clock, which spares the history before that.
-- name: GetWorkEnd :one
SELECT event, session FROM history
WHERE subject = sqlc.arg(subject) AND at >= sqlc.arg(not_before) AND started_at = sqlc.arg(started_at)
  AND epoch = sqlc.arg(epoch) AND process = sqlc.arg(process);

-- Work of one subject that has more than one end, or an end that does not say when it started (I4).
-- name: ListWrongEnds :many
SELECT process, epoch, count(*) AS ends, CAST(min(started_at) AS BIGINT) AS started_at FROM history
WHERE subject = sqlc.arg(subject) AND (started_at > 0 OR event IN ('finished', 'failed', 'cancelled', 'expired', 'revoked'))
GROUP BY process, epoch HAVING count(*) > 1 OR min(started_at) = 0 ORDER BY process, epoch;
