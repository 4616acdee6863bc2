-- name: GetMachine :many
SELECT * FROM machine_record WHERE id = sqlc.arg(id);

-- A machine that comes back under its token goes on from the epoch that it had.
-- name: InsertMachine :exec
INSERT INTO machine (id, provider, provider_id, created_at, takeover_generation, epoch, session, process, limited, since, why, note,
  revision, due_agent_start, due_install, due_operation, due_recovery, due_probe)
VALUES (sqlc.arg(id), sqlc.arg(provider), '', sqlc.arg(created_at), 0,
  COALESCE((SELECT t.epoch FROM token t WHERE t.machine = sqlc.arg(id)), 0), '', '', '', 0, '', '', 0, 0, 0, 0, 0, 0);

-- Writes the lane of a machine, and the instants of its entries in the agenda. It names the holder
-- and the revision that were read: where they are others by now, it writes nothing.
-- name: UpdateMachine :execrows
UPDATE machine SET epoch = sqlc.arg(epoch), session = sqlc.arg(session), process = sqlc.arg(process), limited = sqlc.arg(limited),
  since = sqlc.arg(since), why = sqlc.arg(why), revision = revision + 1,
  due_agent_start = sqlc.arg(due_agent_start), due_install = sqlc.arg(due_install),
  due_operation = sqlc.arg(due_operation), due_recovery = sqlc.arg(due_recovery),
  due_probe = sqlc.arg(due_probe)
WHERE id = sqlc.arg(id) AND epoch = sqlc.arg(was_epoch) AND session = sqlc.arg(was_session) AND revision = sqlc.arg(was_revision);

-- What a session holds of one machine.
-- name: GetMachineHeld :many
SELECT id, process, epoch, since FROM machine WHERE id = sqlc.arg(id) AND session = sqlc.arg(session);

-- What sessions hold: lanes of providers, which name no machine, and then machines, which name no
-- provider. There is no index for it: it reads all machines.
-- name: ListHeld :many
SELECT session, provider, CAST('' AS TEXT) AS machine, process, epoch, since FROM provider_lane WHERE session <> ''
UNION ALL SELECT session, CAST('' AS TEXT) AS provider, id AS machine, process, epoch, since FROM machine WHERE session <> ''
ORDER BY machine, provider, process;

-- The machines behind the one that is given that a session holds which has ended.
-- name: ListAbandoned :many
SELECT m.id FROM machine m JOIN session s ON s.id = m.session
WHERE m.id > sqlc.arg(after) AND m.session <> '' AND s.ended_at > 0 ORDER BY m.id LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- Machines that are held by a session that there is none of, or whose limited column is wrong: must
-- never be.
-- name: ListWrongLanes :many
SELECT m.id, m.session FROM machine m LEFT JOIN session s ON s.id = m.session
WHERE m.session <> '' AND s.id IS NULL OR m.process = sqlc.arg(limited) AND m.limited <> m.process
  OR m.limited <> '' AND m.limited <> sqlc.arg(limited)
  OR m.session = '' AND m.process <> ''
ORDER BY m.id LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- Takes the lock under which those who start work of a limited process at a provider count how much
-- there is.
-- name: LockLimit :exec
INSERT INTO concurrency_limit (provider, process) VALUES (sqlc.arg(provider), sqlc.arg(process))
ON CONFLICT (provider, process) DO UPDATE SET process = excluded.process;

-- Which machines of a provider count against the limit of a process: those that are held for it,
-- dead or alive, and those (without a session) on which the effect of its work may still come.
-- Spent is 1 while the budget of recovery counts the step.
-- name: ListLimited :many
SELECT m.id, m.session, m.due_recovery, CAST(COALESCE(s.deadline_at, 0) AS BIGINT) AS deadline_at, CAST(COALESCE(s.ended_at, 1) AS BIGINT) AS ended_at,
  CAST(COALESCE(p.location, '') AS TEXT) AS location, CAST(COALESCE(r.at, 0) AS BIGINT) AS step_at,
  CAST(COALESCE(r.rung, '') AS TEXT) AS rung, CAST(COALESCE(p.status, '') AS TEXT) AS status, CAST(COALESCE(p.at, 0) AS BIGINT) AS provided_at
FROM machine m LEFT JOIN session s ON s.id = m.session LEFT JOIN fact_provided p ON p.machine = m.id LEFT JOIN repair r ON r.machine = m.id
WHERE m.provider = sqlc.arg(provider) AND m.limited = sqlc.arg(process) AND m.limited <> '' ORDER BY m.id;

-- name: SetProviderID :exec
UPDATE machine SET provider_id = sqlc.arg(provider_id) WHERE id = sqlc.arg(id);

-- Makes the takeover generation grow, above one that a host has seen.
-- name: MintTakeover :one
UPDATE machine SET takeover_generation = CASE WHEN takeover_generation < sqlc.arg(seen) THEN sqlc.arg(seen) ELSE takeover_generation END + 1
WHERE id = sqlc.arg(id) RETURNING takeover_generation;

-- name: DeleteMachine :exec
DELETE FROM machine WHERE id = sqlc.arg(id);

-- name: MachineByProviderID :many
SELECT id FROM machine WHERE provider = sqlc.arg(provider) AND provider_id = sqlc.arg(provider_id) AND provider_id <> '';

-- A machine that has a provider ID has that fact, too: setProvided writes both.
-- name: ListProviderMachines :many
SELECT m.id, m.provider_id, m.created_at, sqlc.embed(p),
  CAST(CASE WHEN oa.number > COALESCE(oe.number, 0) AND oq.operation IN ('release', 'replace') THEN 1 ELSE 0 END AS BIGINT) AS releasing
FROM machine m JOIN fact_provided p ON p.machine = m.id
LEFT JOIN operation_request oq ON oq.machine = m.id
LEFT JOIN operation_attempt oa ON oa.machine = oq.machine AND oa.number = oq.number
LEFT JOIN operation_report oe ON oe.machine = oq.machine
WHERE m.provider = sqlc.arg(provider) AND m.provider_id <> '' ORDER BY m.provider_id;

-- name: ListMachineIDs :many
SELECT id FROM machine WHERE id >= sqlc.arg(lowest) ORDER BY id LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- name: ListMachineIDsAfter :many
SELECT id FROM machine WHERE id > sqlc.arg(after) ORDER BY id LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- name: ListMachinesByAddress :many
SELECT machine, provider FROM fact_provided WHERE address = sqlc.arg(address) AND provider <> sqlc.arg(not_of) ORDER BY machine;

-- The addresses of a provider's machines that machines of other providers have, too.
-- name: ListSharedAddresses :many
SELECT own.address FROM (
  SELECT DISTINCT p.address FROM machine m JOIN fact_provided p ON p.machine = m.id
  WHERE m.provider = sqlc.arg(provider) AND m.provider_id <> '' AND p.address <> ''
) AS own
WHERE EXISTS (SELECT 1 FROM fact_provided o WHERE o.address = own.address AND o.provider <> sqlc.arg(provider) AND o.status <> 'gone')
ORDER BY own.address;

-- name: ListMachinesByHostname :many
SELECT machine FROM fact_provided WHERE hostname = sqlc.arg(hostname) ORDER BY machine LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- name: ListMachine :many
SELECT * FROM machine_line WHERE id = sqlc.arg(id);

-- The first machines behind the one that is given that are in one state of one provider.
-- name: ListMachinesInState :many
SELECT machine FROM machine_state
WHERE provider = sqlc.arg(provider) AND state = sqlc.arg(state) AND machine > sqlc.arg(after)
ORDER BY machine LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- The same, with what machines are selected by besides.
-- name: ListSelectableInState :many
SELECT s.machine, p.location, p.labels FROM machine_state s
JOIN fact_provided p ON p.machine = s.machine
WHERE s.provider = sqlc.arg(provider) AND s.state = sqlc.arg(state) AND s.machine > sqlc.arg(after)
ORDER BY s.machine LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- The instants of the newest machines, for the durations of the phases.
-- name: ListPhases :many
SELECT m.created_at, CAST(COALESCE(t.called_at, 0) AS BIGINT) AS called_at,
  CAST(COALESCE(p.active_at, 0) AS BIGINT) AS active_at, CAST(COALESCE(a.at, 0) AS BIGINT) AS started_at,
  CAST(COALESCE(h.first_at, 0) AS BIGINT) AS hardware_at, CAST(COALESCE(rq.at, 0) AS BIGINT) AS requested_at,
  CAST(COALESCE(ins.at, 0) AS BIGINT) AS installed_at
FROM machine m
LEFT JOIN token t ON t.machine = m.id
LEFT JOIN fact_provided p ON p.machine = m.id
LEFT JOIN fact_agent_started a ON a.machine = m.id
LEFT JOIN fact_hardware h ON h.machine = m.id
LEFT JOIN install_request rq ON rq.machine = m.id
LEFT JOIN installed ins ON ins.machine = m.id
ORDER BY m.id DESC LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- For each state that machines are in, since when the one is that is in it for longest. An index
-- has the states of a provider in their order: found goes from each of them to the next, past
-- whatever is in it. Who is in a state for longest is the first there that is in it or in a later
-- one. Asked for those in that state alone, PostgreSQL could believe that they are few, and read
-- them all by an index that has them in another order.
-- name: ListOldestInStates :many
WITH RECURSIVE found (provider, state) AS (
  SELECT p.name, (SELECT s.state FROM machine_state AS s WHERE s.provider = p.name ORDER BY s.state LIMIT 1) FROM provider AS p
  UNION ALL
  SELECT f.provider, (
    SELECT s.state FROM machine_state AS s WHERE s.provider = f.provider AND s.state > f.state ORDER BY s.state LIMIT 1
  ) FROM found AS f WHERE f.state IS NOT NULL
)
SELECT CAST(f.state AS TEXT) AS state, CAST(min((
    SELECT s.since FROM machine_state AS s WHERE s.provider = f.provider AND s.state >= f.state ORDER BY s.state, s.since LIMIT 1
  )) AS BIGINT) AS since
FROM found AS f WHERE f.state IS NOT NULL GROUP BY f.state;

-- Those that have been in a state since before an instant, and since when the first of them has.
-- name: CountLate :one
SELECT count(*) AS n, CAST(COALESCE(min(since), 0) AS BIGINT) AS oldest FROM machine_state
WHERE provider = sqlc.arg(provider) AND state = sqlc.arg(state) AND since < sqlc.arg(before);

-- Those of them at which recovery has failed since before that instant, without a success; and
-- those, on at their provider, whose host let nobody in when that work reached for it last. But for
-- those whose disk was written for the newest request: what is missed there is no agent.
-- name: CountNotRestarted :one
SELECT count(*) FROM machine_state AS s
WHERE s.provider = sqlc.arg(provider) AND s.state = sqlc.arg(state) AND s.since < sqlc.arg(before)
  AND (EXISTS (SELECT 1 FROM backoff AS b
      WHERE b.subject = s.machine AND b.process = sqlc.arg(recovery) AND b.since > 0 AND b.since < sqlc.arg(before))
    OR EXISTS (SELECT 1 FROM backoff AS b JOIN fact_provided AS p ON p.machine = b.subject
      WHERE b.subject = s.machine AND b.process = sqlc.arg(process) AND b.answered > 1 AND p.status NOT IN ('off', 'powering')))
  AND NOT EXISTS (SELECT 1 FROM install_report AS r JOIN install_request AS q ON q.machine = r.machine
    WHERE r.machine = s.machine AND r.ok = 1 AND r.generation = q.generation);

-- CountLate of all providers together.
-- name: CountLateAnywhere :one
SELECT CAST(COALESCE(sum((
    SELECT count(*) FROM machine_state AS s WHERE s.provider = p.name AND s.state = sqlc.arg(state) AND s.since < sqlc.arg(before)
  )), 0) AS BIGINT) AS n,
  CAST(COALESCE(min((
    SELECT s.since FROM machine_state AS s WHERE s.provider = p.name AND s.state = sqlc.arg(state) AND s.since < sqlc.arg(before)
    ORDER BY s.since LIMIT 1
  )), 0) AS BIGINT) AS oldest
FROM provider AS p;
