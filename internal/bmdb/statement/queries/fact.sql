-- name: PutProvided :exec
INSERT INTO fact_provided (machine, provider, at, created_at, active_at, status, detail, hostname, address, location, labels, capacity, host_keys)
VALUES (sqlc.arg(machine), sqlc.arg(provider), sqlc.arg(at), sqlc.arg(created_at), sqlc.arg(active_at), sqlc.arg(status),
  sqlc.arg(detail), sqlc.arg(hostname), sqlc.arg(address), sqlc.arg(location), sqlc.arg(labels),
  sqlc.arg(capacity), sqlc.arg(host_keys))
ON CONFLICT (machine) DO UPDATE
SET at = excluded.at, created_at = excluded.created_at, active_at = excluded.active_at, status = excluded.status,
  detail = excluded.detail, hostname = excluded.hostname, address = excluded.address, location = excluded.location,
  labels = excluded.labels, capacity = excluded.capacity, host_keys = excluded.host_keys;

-- name: PutAgentStarted :exec
INSERT INTO fact_agent_started (machine, at, takeover_generation, public_key, agent_version, boot_id)
VALUES (sqlc.arg(machine), sqlc.arg(at), sqlc.arg(takeover_generation), sqlc.arg(public_key), sqlc.arg(agent_version), sqlc.arg(boot_id))
ON CONFLICT (machine) DO UPDATE
SET at = excluded.at, takeover_generation = excluded.takeover_generation, public_key = excluded.public_key,
  agent_version = excluded.agent_version, boot_id = excluded.boot_id;

-- name: GetAgentStarted :one
SELECT takeover_generation, public_key FROM fact_agent_started WHERE machine = sqlc.arg(machine);

-- name: PutAgentSeen :exec
INSERT INTO fact_agent_seen (machine, takeover_generation, first_at, boot_id)
VALUES (sqlc.arg(machine), sqlc.arg(takeover_generation), sqlc.arg(first_at), sqlc.arg(boot_id))
ON CONFLICT (machine) DO UPDATE
SET takeover_generation = excluded.takeover_generation, first_at = excluded.first_at, boot_id = excluded.boot_id;

-- name: PutLastSeen :exec
INSERT INTO agent_last_seen (machine, takeover_generation, last_at)
VALUES (sqlc.arg(machine), sqlc.arg(takeover_generation), sqlc.arg(last_at))
ON CONFLICT (machine) DO UPDATE SET takeover_generation = excluded.takeover_generation, last_at = excluded.last_at;

-- name: PutHardware :exec
INSERT INTO fact_hardware (machine, first_at, at, digest)
VALUES (sqlc.arg(machine), sqlc.arg(at), sqlc.arg(at), sqlc.arg(digest))
ON CONFLICT (machine) DO UPDATE SET at = excluded.at, digest = excluded.digest;

-- name: PutHardwareReport :exec
INSERT INTO hardware_report (machine, report) VALUES (sqlc.arg(machine), sqlc.arg(report))
ON CONFLICT (machine) DO UPDATE SET report = excluded.report;

-- name: GetHardwareReport :one
SELECT report FROM hardware_report WHERE machine = sqlc.arg(machine);

-- name: PutQuarantine :exec
INSERT INTO quarantine (machine, at, actor, reason) VALUES (sqlc.arg(machine), sqlc.arg(at), sqlc.arg(actor), sqlc.arg(reason))
ON CONFLICT (machine) DO UPDATE SET at = excluded.at, actor = excluded.actor, reason = excluded.reason;

-- name: DeleteQuarantine :exec
DELETE FROM quarantine WHERE machine = sqlc.arg(machine);

-- name: PutHostKeys :exec
INSERT INTO host_key (machine, at, pinned, source, refused, refused_at)
VALUES (sqlc.arg(machine), sqlc.arg(at), sqlc.arg(pinned), sqlc.arg(source), '', 0)
ON CONFLICT (machine) DO UPDATE SET at = excluded.at, pinned = excluded.pinned, source = excluded.source, refused = '', refused_at = 0;

-- name: RefuseHostKey :exec
INSERT INTO host_key (machine, at, pinned, source, refused, refused_at)
VALUES (sqlc.arg(machine), 0, '', '', sqlc.arg(refused), sqlc.arg(refused_at))
ON CONFLICT (machine) DO UPDATE SET refused = excluded.refused, refused_at = excluded.refused_at;

-- name: DeleteHostKeys :exec
DELETE FROM host_key WHERE machine = sqlc.arg(machine);

-- name: GetHostKeys :many
SELECT * FROM host_key WHERE machine = sqlc.arg(machine);

-- name: FlushSeen :exec
UPDATE agent_last_seen SET last_at = sqlc.arg(last_at)
WHERE machine = sqlc.arg(machine) AND takeover_generation = sqlc.arg(takeover_generation) AND last_at < sqlc.arg(last_at);
