-- name: ListHistory :many
SELECT at, actor, process, epoch, event, detail, retry_at FROM history WHERE subject = sqlc.arg(subject)
ORDER BY id DESC LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- How a work ended, looked up when its commit is repeated.
-- name: GetWorkEnd :one
SELECT event, session FROM history
WHERE subject = sqlc.arg(subject) AND epoch = sqlc.arg(epoch) AND lane = sqlc.arg(lane) AND edge = 'end' AND edge <> '';
