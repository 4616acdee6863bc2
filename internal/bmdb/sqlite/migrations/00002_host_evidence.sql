-- An agent refuses to overwrite what its disk holds already: which install that is, is part of its report. Host keys are known with
-- where they are from, and a key that was refused is kept until a person has looked at it.

-- +goose Up
-- The view comes first: whoever reads it has its lock before those of the tables.
DROP VIEW machine_record;

ALTER TABLE install_report ADD COLUMN held_generation BIGINT NOT NULL DEFAULT 0; -- 0: the disk held nothing that stood in the way
ALTER TABLE install_report ADD COLUMN held_attempt BIGINT NOT NULL DEFAULT 0;

ALTER TABLE host_key ADD COLUMN source TEXT NOT NULL DEFAULT 'first use'; -- injected, first use, installed system, accepted
ALTER TABLE host_key ADD COLUMN refused TEXT NOT NULL DEFAULT ''; -- key that the host has shown instead, in authorized_keys form
ALTER TABLE host_key ADD COLUMN refused_at BIGINT NOT NULL DEFAULT 0;

CREATE VIEW machine_record AS
SELECT m.id, m.provider, m.provider_id, m.created_at, m.takeover_generation,
  m.epoch, m.session, m.process, m.since, m.why, m.note, m.revision, m.due_agent_start, m.due_install, m.due_recovery,
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
  CAST(COALESCE(rp.held_generation, 0) AS BIGINT) AS report_held_generation, CAST(COALESCE(rp.held_attempt, 0) AS BIGINT) AS report_held_attempt,
  CAST(COALESCE(ins.generation, 0) AS BIGINT) AS installed_generation, CAST(COALESCE(ins.attempt, 0) AS BIGINT) AS installed_attempt,
  CAST(COALESCE(ins.at, 0) AS BIGINT) AS installed_at, CAST(COALESCE(ins.boot_id, '') AS TEXT) AS installed_boot_id,
  CAST(COALESCE(q.at, 0) AS BIGINT) AS quarantine_at, CAST(COALESCE(q.actor, '') AS TEXT) AS quarantine_actor,
  CAST(COALESCE(q.reason, '') AS TEXT) AS quarantine_reason,
  CAST(COALESCE(se.component, '') AS TEXT) AS session_component, CAST(COALESCE(se.host, '') AS TEXT) AS session_host,
  CAST(COALESCE(se.deadline_at, 0) AS BIGINT) AS session_deadline_at, CAST(COALESCE(se.ended_at, 1) AS BIGINT) AS session_ended_at
FROM machine m
LEFT JOIN machine_state st ON st.machine = m.id
LEFT JOIN intent i ON i.machine = m.id
LEFT JOIN fact_provided p ON p.machine = m.id
LEFT JOIN fact_agent_started a ON a.machine = m.id
LEFT JOIN fact_agent_seen s ON s.machine = a.machine
LEFT JOIN agent_last_seen ls ON ls.machine = s.machine
LEFT JOIN fact_hardware h ON h.machine = a.machine
LEFT JOIN install_request rq ON rq.machine = m.id
LEFT JOIN install_attempt att ON att.machine = rq.machine
LEFT JOIN install_report rp ON rp.machine = att.machine
LEFT JOIN installed ins ON ins.machine = att.machine
LEFT JOIN quarantine q ON q.machine = m.id
LEFT JOIN session se ON se.id = NULLIF(m.session, '');

-- +goose Down
DROP VIEW machine_record;
ALTER TABLE host_key DROP COLUMN refused_at;
ALTER TABLE host_key DROP COLUMN refused;
ALTER TABLE host_key DROP COLUMN source;
ALTER TABLE install_report DROP COLUMN held_attempt;
ALTER TABLE install_report DROP COLUMN held_generation;
CREATE VIEW machine_record AS
SELECT m.id, m.provider, m.provider_id, m.created_at, m.takeover_generation,
  m.epoch, m.session, m.process, m.since, m.why, m.note, m.revision, m.due_agent_start, m.due_install, m.due_recovery,
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
  CAST(COALESCE(se.component, '') AS TEXT) AS session_component, CAST(COALESCE(se.host, '') AS TEXT) AS session_host,
  CAST(COALESCE(se.deadline_at, 0) AS BIGINT) AS session_deadline_at, CAST(COALESCE(se.ended_at, 1) AS BIGINT) AS session_ended_at
FROM machine m
LEFT JOIN machine_state st ON st.machine = m.id
LEFT JOIN intent i ON i.machine = m.id
LEFT JOIN fact_provided p ON p.machine = m.id
LEFT JOIN fact_agent_started a ON a.machine = m.id
LEFT JOIN fact_agent_seen s ON s.machine = a.machine
LEFT JOIN agent_last_seen ls ON ls.machine = s.machine
LEFT JOIN fact_hardware h ON h.machine = a.machine
LEFT JOIN install_request rq ON rq.machine = m.id
LEFT JOIN install_attempt att ON att.machine = rq.machine
LEFT JOIN install_report rp ON rp.machine = att.machine
LEFT JOIN installed ins ON ins.machine = att.machine
LEFT JOIN quarantine q ON q.machine = m.id
LEFT JOIN session se ON se.id = NULLIF(m.session, '');
