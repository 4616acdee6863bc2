-- name: ListHistory :many
SELECT at, actor, process, epoch, event, detail, retry_at FROM history WHERE subject = sqlc.arg(subject)
ORDER BY id DESC LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- How a work ended, looked up when its commit is repeated.
-- name: GetWorkEnd :one
SELECT event, session FROM history
WHERE subject = sqlc.arg(subject) AND epoch = sqlc.arg(epoch) AND lane = sqlc.arg(lane) AND edge = 'end' AND edge <> '';

-- name: CheckHistoryEdges :many
SELECT h.subject, h.lane, h.epoch, CAST(sum(CASE WHEN h.edge = 'start' THEN 1 ELSE 0 END) AS BIGINT) AS starts,
  CAST(sum(CASE WHEN h.edge = 'end' THEN 1 ELSE 0 END) AS BIGINT) AS ends,
  CAST(COALESCE(max(l.epoch), 0) AS BIGINT) AS running
FROM history h LEFT JOIN lane l ON l.subject = h.subject AND l.lane = h.lane AND l.epoch = h.epoch AND l.session <> ''
WHERE h.edge <> '' GROUP BY h.subject, h.lane, h.epoch
HAVING sum(CASE WHEN h.edge = 'end' THEN 1 ELSE 0 END) > 1 OR sum(CASE WHEN h.edge = 'start' THEN 1 ELSE 0 END) > 1
  OR (sum(CASE WHEN h.edge = 'end' THEN 1 ELSE 0 END) = 0 AND COALESCE(max(l.epoch), 0) = 0)
  OR (sum(CASE WHEN h.edge = 'end' THEN 1 ELSE 0 END) = 1 AND COALESCE(max(l.epoch), 0) > 0)
LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);
