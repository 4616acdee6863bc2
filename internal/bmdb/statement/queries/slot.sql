-- The slots that are taken: their lanes have the epoch of the slot still, and somebody has them, dead or alive. (Lanes are found by
-- their keys: session <> '' would invite PostgreSQL to go through all that are held.)
-- name: ListTakenSlots :many
SELECT s.slot, s.subject, CAST(COALESCE(e.deadline_at, 0) AS BIGINT) AS deadline_at, CAST(COALESCE(e.ended_at, 1) AS BIGINT) AS ended_at
FROM storm_slot s JOIN lane l ON l.subject = s.subject AND l.lane = s.lane AND l.epoch = s.epoch LEFT JOIN session e ON e.id = l.session
WHERE s.process = sqlc.arg(process) AND s.provider = sqlc.arg(provider) AND length(l.session) > 0
ORDER BY s.slot;

-- What runs of a process without a slot: it started while there was no limit.
-- name: ListWithoutSlot :many
SELECT m.provider, l.subject, l.lane, l.epoch, l.since
FROM lane l JOIN machine m ON m.id = l.subject
WHERE l.session <> '' AND l.process = sqlc.arg(process) AND NOT EXISTS (
  SELECT 1 FROM storm_slot s WHERE s.process = sqlc.arg(process) AND s.provider = m.provider AND s.subject = l.subject
    AND s.lane = l.lane AND s.epoch = l.epoch)
ORDER BY m.provider, l.subject;

-- How many slots are taken that were taken under a policy, and how many works have them.
-- name: CountTakenSlots :many
SELECT s.provider, count(*) AS slots, count(DISTINCT s.subject) AS works
FROM storm_slot s JOIN lane l ON l.subject = s.subject AND l.lane = s.lane AND l.epoch = s.epoch
WHERE s.process = sqlc.arg(process) AND s.policy = sqlc.arg(policy) AND length(l.session) > 0
GROUP BY s.provider ORDER BY s.provider;

-- name: GetPolicyTime :one
SELECT at FROM policy WHERE number = sqlc.arg(number);

-- ListDueAfter of one provider. The process is a constant, as in the index.
-- name: ListRecoveryDueAfter :many
SELECT subject, due_at FROM agenda
WHERE process = 'recovery' AND provider = sqlc.arg(provider) AND due_at <= sqlc.arg(now) AND due_at >= sqlc.arg(from_due_at)
ORDER BY due_at, subject LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- ListNextAfter of one provider.
-- name: ListRecoveryNextAfter :many
SELECT due_at FROM agenda
WHERE process = 'recovery' AND provider = sqlc.arg(provider) AND due_at >= sqlc.arg(from_due_at)
ORDER BY due_at, subject LIMIT 1;
