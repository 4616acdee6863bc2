-- Everything that lifecycle judges a machine by, its backoffs apart, and what the last judgement left. One row by key: each join
-- finds at most one row by its primary key.
-- name: GetMachine :one
SELECT m.id, m.provider, m.provider_id, m.created_at, m.takeover_generation,
  CAST(COALESCE(st.state, '') AS TEXT) AS state, CAST(COALESCE(st.reason, '') AS TEXT) AS state_reason,
  CAST(COALESCE(st.since, 0) AS BIGINT) AS state_since, CAST(COALESCE(st.policy, 0) AS BIGINT) AS state_policy,
  CAST(COALESCE(i.capacity, '') AS TEXT) AS intent_capacity, CAST(COALESCE(i.token, '') AS TEXT) AS intent_token,
  CAST(COALESCE(i.opened_at, 0) AS BIGINT) AS intent_opened_at, CAST(COALESCE(i.planned_at, 0) AS BIGINT) AS intent_planned_at,
  CAST(COALESCE(i.called_at, 0) AS BIGINT) AS intent_called_at, CAST(COALESCE(i.calls, 0) AS BIGINT) AS intent_calls,
  CAST(COALESCE(i.rejected, 0) AS BIGINT) AS intent_rejected,
  CAST(COALESCE(p.at, 0) AS BIGINT) AS provided_at, CAST(COALESCE(p.created_at, 0) AS BIGINT) AS provided_created_at,
  CAST(COALESCE(p.active_at, 0) AS BIGINT) AS provided_active_at, CAST(COALESCE(p.status, '') AS TEXT) AS provided_status,
  CAST(COALESCE(p.detail, '') AS TEXT) AS provided_detail, CAST(COALESCE(p.hostname, '') AS TEXT) AS provided_hostname,
  CAST(COALESCE(p.address, '') AS TEXT) AS provided_address, CAST(COALESCE(p.location, '') AS TEXT) AS provided_location,
  CAST(COALESCE(p.capacity, '') AS TEXT) AS provided_capacity, CAST(COALESCE(p.host_keys, '') AS TEXT) AS provided_host_keys,
  CAST(COALESCE(a.at, 0) AS BIGINT) AS started_at, CAST(COALESCE(a.takeover_generation, 0) AS BIGINT) AS started_generation,
  a.public_key AS started_key, CAST(COALESCE(a.agent_version, '') AS TEXT) AS started_version,
  CAST(COALESCE(a.boot_id, '') AS TEXT) AS started_boot_id,
  CAST(COALESCE(s.takeover_generation, 0) AS BIGINT) AS seen_generation, CAST(COALESCE(s.first_at, 0) AS BIGINT) AS seen_first_at,
  CAST(COALESCE(s.boot_id, '') AS TEXT) AS seen_boot_id, CAST(COALESCE(ls.last_at, 0) AS BIGINT) AS seen_last_at,
  CAST(COALESCE(h.first_at, 0) AS BIGINT) AS hardware_first_at, CAST(COALESCE(h.at, 0) AS BIGINT) AS hardware_at,
  CAST(COALESCE(h.digest, '') AS TEXT) AS hardware_digest,
  CAST(COALESCE(rq.generation, 0) AS BIGINT) AS request_generation, CAST(COALESCE(rq.at, 0) AS BIGINT) AS request_at,
  CAST(COALESCE(rq.actor, '') AS TEXT) AS request_actor, CAST(COALESCE(rq.image, '') AS TEXT) AS request_image,
  CAST(COALESCE(rq.root_disk, '') AS TEXT) AS request_root_disk,
  CAST(COALESCE(att.generation, 0) AS BIGINT) AS attempt_generation, CAST(COALESCE(att.attempt, 0) AS BIGINT) AS attempt_attempt,
  CAST(COALESCE(att.at, 0) AS BIGINT) AS attempt_at, att.secret_hash AS attempt_secret_hash,
  CAST(COALESCE(rp.generation, 0) AS BIGINT) AS report_generation, CAST(COALESCE(rp.attempt, 0) AS BIGINT) AS report_attempt,
  CAST(COALESCE(rp.at, 0) AS BIGINT) AS report_at, CAST(COALESCE(rp.ok, 0) AS BIGINT) AS report_ok,
  CAST(COALESCE(rp.error, '') AS TEXT) AS report_error, CAST(COALESCE(rp.disk, '') AS TEXT) AS report_disk,
  CAST(COALESCE(rp.lasted, 0) AS BIGINT) AS report_lasted, CAST(COALESCE(rp.bytes, 0) AS BIGINT) AS report_bytes,
  CAST(COALESCE(ins.generation, 0) AS BIGINT) AS installed_generation, CAST(COALESCE(ins.attempt, 0) AS BIGINT) AS installed_attempt,
  CAST(COALESCE(ins.at, 0) AS BIGINT) AS installed_at, CAST(COALESCE(ins.boot_id, '') AS TEXT) AS installed_boot_id,
  CAST(COALESCE(q.at, 0) AS BIGINT) AS quarantine_at, CAST(COALESCE(q.actor, '') AS TEXT) AS quarantine_actor,
  CAST(COALESCE(q.reason, '') AS TEXT) AS quarantine_reason,
  CAST(COALESCE(l.epoch, 0) AS BIGINT) AS lane_epoch, CAST(COALESCE(l.session, '') AS TEXT) AS lane_session,
  CAST(COALESCE(l.process, '') AS TEXT) AS lane_process, CAST(COALESCE(l.since, 0) AS BIGINT) AS lane_since,
  CAST(COALESCE(l.revision, 0) AS BIGINT) AS lane_revision,
  CAST(COALESCE(se.component, '') AS TEXT) AS session_component, CAST(COALESCE(se.host, '') AS TEXT) AS session_host,
  CAST(COALESCE(se.deadline_at, 0) AS BIGINT) AS session_deadline_at, CAST(COALESCE(se.ended_at, 1) AS BIGINT) AS session_ended_at
FROM machine m
LEFT JOIN machine_state st ON st.machine = m.id
LEFT JOIN intent i ON i.machine = m.id
LEFT JOIN fact_provided p ON p.machine = m.id
LEFT JOIN fact_agent_started a ON a.machine = m.id
LEFT JOIN fact_agent_seen s ON s.machine = m.id
LEFT JOIN agent_last_seen ls ON ls.machine = m.id
LEFT JOIN fact_hardware h ON h.machine = m.id
LEFT JOIN install_request rq ON rq.machine = m.id
LEFT JOIN install_attempt att ON att.machine = m.id
LEFT JOIN install_report rp ON rp.machine = m.id
LEFT JOIN installed ins ON ins.machine = m.id
LEFT JOIN quarantine q ON q.machine = m.id
LEFT JOIN lane l ON l.subject = m.id AND l.lane = 'host'
LEFT JOIN session se ON se.id = l.session AND l.session <> ''
WHERE m.id = sqlc.arg(id);

-- name: InsertMachine :exec
INSERT INTO machine (id, provider, provider_id, created_at, takeover_generation)
VALUES (sqlc.arg(id), sqlc.arg(provider), sqlc.arg(provider_id), sqlc.arg(created_at), 0);

-- name: SetProviderID :exec
UPDATE machine SET provider_id = sqlc.arg(provider_id) WHERE id = sqlc.arg(id);

-- name: MintTakeover :one
UPDATE machine SET takeover_generation = takeover_generation + 1 WHERE id = sqlc.arg(id) RETURNING takeover_generation;

-- name: DeleteMachine :execrows
DELETE FROM machine WHERE id = sqlc.arg(id);

-- name: MachineByProviderID :many
SELECT id FROM machine WHERE provider = sqlc.arg(provider) AND provider_id = sqlc.arg(provider_id) AND provider_id <> '';

-- name: ListProviderMachines :many
SELECT m.id, m.provider_id, m.created_at,
  CAST(COALESCE(p.at, 0) AS BIGINT) AS provided_at, CAST(COALESCE(p.created_at, 0) AS BIGINT) AS provided_created_at,
  CAST(COALESCE(p.active_at, 0) AS BIGINT) AS provided_active_at, CAST(COALESCE(p.status, '') AS TEXT) AS provided_status,
  CAST(COALESCE(p.detail, '') AS TEXT) AS provided_detail, CAST(COALESCE(p.hostname, '') AS TEXT) AS provided_hostname,
  CAST(COALESCE(p.address, '') AS TEXT) AS provided_address, CAST(COALESCE(p.location, '') AS TEXT) AS provided_location,
  CAST(COALESCE(p.capacity, '') AS TEXT) AS provided_capacity, CAST(COALESCE(p.host_keys, '') AS TEXT) AS provided_host_keys
FROM machine m LEFT JOIN fact_provided p ON p.machine = m.id
WHERE m.provider = sqlc.arg(provider) AND m.provider_id <> '' ORDER BY m.provider_id;

-- name: ListMachineIDs :many
SELECT id FROM machine WHERE id >= sqlc.arg(lowest) ORDER BY id LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- name: ListMachineIDsAfter :many
SELECT id FROM machine WHERE id > sqlc.arg(after) ORDER BY id LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- name: ListMachinesByHostname :many
SELECT machine FROM fact_provided WHERE hostname = sqlc.arg(hostname) ORDER BY machine LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- A run of machines: those from lowest to highest, at most so many. In the order of their keys
-- they are a range of each table, too, which is a few pages; a row at a time they would be a descent of five indexes each. So each
-- range is read for itself, and the rows are put together. A request may outlive its machine, and be in the range.
-- name: ListMachineRun :many
WITH page AS MATERIALIZED (
  SELECT id, provider, provider_id, created_at, takeover_generation FROM machine
  WHERE id >= sqlc.arg(lowest) AND id <= sqlc.arg(highest) ORDER BY id LIMIT CAST(sqlc.arg(max_rows) AS BIGINT)
), last AS MATERIALIZED (SELECT max(id) AS highest FROM page)
SELECT id, CAST(COALESCE(max(provider), '') AS TEXT) AS provider, CAST(COALESCE(max(provider_id), '') AS TEXT) AS provider_id,
  CAST(COALESCE(max(created_at), 0) AS BIGINT) AS created_at,
  CAST(COALESCE(max(takeover_generation), 0) AS BIGINT) AS takeover_generation, CAST(COALESCE(max(state), '') AS TEXT) AS state,
  CAST(COALESCE(max(reason), '') AS TEXT) AS reason, CAST(COALESCE(max(since), 0) AS BIGINT) AS since,
  CAST(COALESCE(max(hostname), '') AS TEXT) AS hostname, CAST(COALESCE(max(address), '') AS TEXT) AS address,
  CAST(COALESCE(max(location), '') AS TEXT) AS location, CAST(COALESCE(max(agent_version), '') AS TEXT) AS agent_version,
  CAST(COALESCE(max(last_at), 0) AS BIGINT) AS last_at, CAST(COALESCE(max(generation), 0) AS BIGINT) AS install_generation,
  CAST(COALESCE(max(process), '') AS TEXT) AS process
FROM (
  SELECT id, provider, provider_id, created_at, takeover_generation,
    CAST(NULL AS TEXT) AS state, CAST(NULL AS TEXT) AS reason, CAST(NULL AS BIGINT) AS since, CAST(NULL AS TEXT) AS hostname,
    CAST(NULL AS TEXT) AS address, CAST(NULL AS TEXT) AS location, CAST(NULL AS TEXT) AS agent_version,
    CAST(NULL AS BIGINT) AS last_at, CAST(NULL AS BIGINT) AS generation,
    CAST(NULL AS TEXT) AS process FROM page
  UNION ALL SELECT machine, NULL, NULL, NULL, NULL, state, reason, since, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM machine_state s WHERE s.machine >= sqlc.arg(lowest) AND s.machine <= (SELECT highest FROM last)
  UNION ALL SELECT machine, NULL, NULL, NULL, NULL, NULL, NULL, NULL, hostname, address, location, NULL, NULL, NULL, NULL
    FROM fact_provided p WHERE p.machine >= sqlc.arg(lowest) AND p.machine <= (SELECT highest FROM last)
  UNION ALL SELECT machine, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, agent_version, NULL, NULL, NULL
    FROM fact_agent_started a WHERE a.machine >= sqlc.arg(lowest) AND a.machine <= (SELECT highest FROM last)
  UNION ALL SELECT machine, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, last_at, NULL, NULL
    FROM agent_last_seen l WHERE l.machine >= sqlc.arg(lowest) AND l.machine <= (SELECT highest FROM last)
  UNION ALL SELECT machine, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, generation, NULL
    FROM install_request r WHERE r.machine >= sqlc.arg(lowest) AND r.machine <= (SELECT highest FROM last)
  UNION ALL SELECT subject, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, process
    FROM lane w WHERE w.subject >= sqlc.arg(lowest) AND w.subject <= (SELECT highest FROM last) AND w.lane = 'host' AND w.session <> ''
) AS parts GROUP BY id HAVING max(provider) IS NOT NULL ORDER BY id;

-- How many machines there are from the first to the last, as far as to max_rows.
-- name: CountMachineRun :one
SELECT count(*) AS n FROM (
  SELECT id FROM machine WHERE id >= sqlc.arg(lowest) AND id <= sqlc.arg(highest) ORDER BY id LIMIT CAST(sqlc.arg(max_rows) AS BIGINT)
) AS run;

-- What a list says of a machine: as ListMachineRun, for one by its key.
-- name: ListMachine :many
SELECT m.id, m.provider, m.provider_id, m.created_at, m.takeover_generation,
  CAST(COALESCE(st.state, '') AS TEXT) AS state, CAST(COALESCE(st.reason, '') AS TEXT) AS reason,
  CAST(COALESCE(st.since, 0) AS BIGINT) AS since,
  CAST(COALESCE(p.hostname, '') AS TEXT) AS hostname, CAST(COALESCE(p.address, '') AS TEXT) AS address,
  CAST(COALESCE(p.location, '') AS TEXT) AS location, CAST(COALESCE(a.agent_version, '') AS TEXT) AS agent_version,
  CAST(COALESCE(ls.last_at, 0) AS BIGINT) AS last_at, CAST(COALESCE(rq.generation, 0) AS BIGINT) AS install_generation,
  CAST(COALESCE(w.process, '') AS TEXT) AS process
FROM machine m
LEFT JOIN machine_state st ON st.machine = m.id
LEFT JOIN fact_provided p ON p.machine = m.id
LEFT JOIN fact_agent_started a ON a.machine = m.id
LEFT JOIN agent_last_seen ls ON ls.machine = m.id
LEFT JOIN install_request rq ON rq.machine = m.id
LEFT JOIN lane w ON w.subject = m.id AND w.lane = 'host' AND w.session <> ''
WHERE m.id = sqlc.arg(id);

-- The first machines behind the one that is given that are in one state of one provider.
-- name: ListMachinesInState :many
SELECT machine FROM machine_state
WHERE provider = sqlc.arg(provider) AND state = sqlc.arg(state) AND machine > sqlc.arg(after)
ORDER BY machine LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- The instants of the newest machines, for the durations of the phases.
-- name: ListPhases :many
SELECT m.created_at, CAST(COALESCE(t.called_at, 0) AS BIGINT) AS called_at,
  CAST(COALESCE(p.active_at, 0) AS BIGINT) AS active_at, CAST(COALESCE(a.at, 0) AS BIGINT) AS started_at,
  CAST(COALESCE(h.first_at, 0) AS BIGINT) AS hardware_at, CAST(COALESCE(rq.at, 0) AS BIGINT) AS requested_at,
  CAST(COALESCE(ins.at, 0) AS BIGINT) AS installed_at, CAST(COALESCE(rq.generation, 0) AS BIGINT) AS generation
FROM machine m
LEFT JOIN token t ON t.machine = m.id
LEFT JOIN fact_provided p ON p.machine = m.id
LEFT JOIN fact_agent_started a ON a.machine = m.id
LEFT JOIN fact_hardware h ON h.machine = m.id
LEFT JOIN install_request rq ON rq.machine = m.id
LEFT JOIN installed ins ON ins.machine = m.id
ORDER BY m.id DESC LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);
