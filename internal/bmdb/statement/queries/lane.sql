-- name: GetLane :one
SELECT l.epoch, l.session, l.process, l.since, l.note, CAST(COALESCE(s.ended_at, 1) AS BIGINT) AS ended_at
FROM lane l LEFT JOIN session s ON s.id = l.session
WHERE l.subject = sqlc.arg(subject) AND l.lane = sqlc.arg(lane);

-- name: FreeLane :execrows
UPDATE lane SET session = '', process = '', note = ''
WHERE subject = sqlc.arg(subject) AND lane = sqlc.arg(lane) AND epoch = sqlc.arg(epoch) AND session <> '';

-- name: BumpLane :exec
INSERT INTO lane (subject, lane, epoch, session, process, since, note)
VALUES (sqlc.arg(subject), sqlc.arg(lane), 1, '', '', sqlc.arg(since), '')
ON CONFLICT (subject, lane) DO UPDATE
SET epoch = lane.epoch + 1, session = '', process = '', since = excluded.since, note = '';

-- name: SetLaneNote :exec
UPDATE lane SET note = sqlc.arg(note) WHERE subject = sqlc.arg(subject) AND lane = sqlc.arg(lane);

-- A held lane whose session there is none of: must never be.
-- name: ListLanesWithoutSession :many
SELECT l.subject, l.lane, l.session FROM lane l LEFT JOIN session s ON s.id = l.session
WHERE l.session <> '' AND s.id IS NULL ORDER BY l.subject LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);
