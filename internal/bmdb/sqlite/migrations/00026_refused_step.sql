-- A step of recovery that the provider has refused.

-- +goose Up
-- The view comes first: whoever reads it has its lock before those of the tables.
DROP VIEW machine_record;
-- The at of the newest step, where the provider has refused the newest one that restarts the
-- machine; 0: it has not. Another instant says nothing: a version before this one takes the next
-- step without it.
ALTER TABLE repair ADD COLUMN refused_step BIGINT NOT NULL DEFAULT 0;
CREATE VIEW machine_record AS
SELECT m.id, m.provider, m.provider_id, m.created_at, m.takeover_generation,
  m.epoch, m.session, m.process, m.since, m.why, m.note, m.revision, m.due_agent_start, m.due_install, m.due_operation, m.due_recovery, m.limited,
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
  CAST(COALESCE(p.labels, '') AS TEXT) AS provided_labels, CAST(COALESCE(p.capacity, '') AS TEXT) AS provided_capacity,
  CAST(COALESCE(p.host_keys, '') AS TEXT) AS provided_host_keys,
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
  CAST(COALESCE(mt.at, 0) AS BIGINT) AS maintenance_at, CAST(COALESCE(mt.until, 0) AS BIGINT) AS maintenance_until,
  CAST(COALESCE(mt.ended, 0) AS BIGINT) AS maintenance_ended, CAST(COALESCE(mt.actor, '') AS TEXT) AS maintenance_actor,
  CAST(COALESCE(mt.reason, '') AS TEXT) AS maintenance_reason,
  CAST(COALESCE(ic.generation, 0) AS BIGINT) AS cancel_generation, CAST(COALESCE(ic.at, 0) AS BIGINT) AS cancel_at,
  CAST(COALESCE(ic.actor, '') AS TEXT) AS cancel_actor, CAST(COALESCE(ic.reason, '') AS TEXT) AS cancel_reason,
  CAST(COALESCE(oq.number, 0) AS BIGINT) AS operation_number, CAST(COALESCE(oq.operation, '') AS TEXT) AS operation,
  CAST(COALESCE(oq.at, 0) AS BIGINT) AS operation_at, CAST(COALESCE(oq.actor, '') AS TEXT) AS operation_actor,
  CAST(COALESCE(oq.reason, '') AS TEXT) AS operation_reason,
  CAST(COALESCE(oa.number, 0) AS BIGINT) AS operating_number, CAST(COALESCE(oa.attempt, 0) AS BIGINT) AS operating_attempt,
  CAST(COALESCE(oa.at, 0) AS BIGINT) AS operating_at, CAST(COALESCE(oa.boot_id, '') AS TEXT) AS operating_boot_id,
  CAST(COALESCE(oa.accepted_at, 0) AS BIGINT) AS operating_accepted_at, CAST(COALESCE(oa.checked_at, 0) AS BIGINT) AS operating_checked_at,
  CAST(COALESCE(oe.number, 0) AS BIGINT) AS operated_number, CAST(COALESCE(oe.at, 0) AS BIGINT) AS operated_at,
  CAST(COALESCE(oe.ok, 0) AS BIGINT) AS operated_ok, CAST(COALESCE(oe.detail, '') AS TEXT) AS operated_detail,
  CAST(COALESCE(re.since, 0) AS BIGINT) AS repair_since, CAST(COALESCE(re.rung, '') AS TEXT) AS repair_rung,
  CAST(COALESCE(re.at, 0) AS BIGINT) AS repair_at, CAST(COALESCE(re.agent_starts, 0) AS BIGINT) AS repair_agent_starts,
  CAST(COALESCE(re.reboots, 0) AS BIGINT) AS repair_reboots, CAST(COALESCE(re.power_cycles, 0) AS BIGINT) AS repair_power_cycles,
  CAST(COALESCE(re.reinstalls, 0) AS BIGINT) AS repair_reinstalls,
  CAST(COALESCE(re.takeover_generation, 0) AS BIGINT) AS repair_takeover_generation, CAST(COALESCE(re.boot_id, '') AS TEXT) AS repair_boot_id,
  CAST(COALESCE(pr.levers, '') AS TEXT) AS levers,
  CAST(COALESCE(se.component, '') AS TEXT) AS session_component, CAST(COALESCE(se.host, '') AS TEXT) AS session_host,
  CAST(COALESCE(se.deadline_at, 0) AS BIGINT) AS session_deadline_at, CAST(COALESCE(se.ended_at, 1) AS BIGINT) AS session_ended_at,
  m.due_probe, CAST(COALESCE(rq.seen_up, '') AS TEXT) AS request_seen_up, CAST(COALESCE(att.host_key, '') AS TEXT) AS attempt_host_key,
  CAST(COALESCE(ins.seen_up, '') AS TEXT) AS installed_seen_up,
  CAST(COALESCE(pb.generation, 0) AS BIGINT) AS probe_generation, CAST(COALESCE(pb.attempt, 0) AS BIGINT) AS probe_attempt,
  CAST(COALESCE(pb.at, 0) AS BIGINT) AS probe_at, CAST(COALESCE(pb.answered_at, 0) AS BIGINT) AS probe_answered_at,
  CAST(COALESCE(pb.unanswered_since, 0) AS BIGINT) AS probe_unanswered_since, CAST(COALESCE(pb.detail, '') AS TEXT) AS probe_detail,
  CAST(COALESCE(pb.epoch, 0) AS BIGINT) AS probe_epoch, CAST(COALESCE(pb.session, '') AS TEXT) AS probe_session,
  CAST(COALESCE(ins.erased_at, 0) AS BIGINT) AS installed_erased_at,
  CAST(COALESCE(rp.needs_erase, 0) AS BIGINT) AS report_needs_erase,
  CAST(COALESCE(rp.not_understood, 0) AS BIGINT) AS report_not_understood,
  CAST(COALESCE(re.refused_step, 0) AS BIGINT) AS repair_refused_step
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
LEFT JOIN installed ins ON ins.machine = m.id
LEFT JOIN probe pb ON pb.machine = att.machine
LEFT JOIN quarantine q ON q.machine = m.id
LEFT JOIN maintenance mt ON mt.machine = m.id
LEFT JOIN install_cancel ic ON ic.machine = rq.machine
LEFT JOIN operation_request oq ON oq.machine = m.id
LEFT JOIN operation_attempt oa ON oa.machine = oq.machine
LEFT JOIN operation_report oe ON oe.machine = oq.machine
LEFT JOIN repair re ON re.machine = m.id
LEFT JOIN provider pr ON pr.name = m.provider
LEFT JOIN session se ON se.id = NULLIF(m.session, '');

-- +goose Down
DROP VIEW machine_record;
ALTER TABLE repair DROP COLUMN refused_step;
CREATE VIEW machine_record AS
SELECT m.id, m.provider, m.provider_id, m.created_at, m.takeover_generation,
  m.epoch, m.session, m.process, m.since, m.why, m.note, m.revision, m.due_agent_start, m.due_install, m.due_operation, m.due_recovery, m.limited,
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
  CAST(COALESCE(p.labels, '') AS TEXT) AS provided_labels, CAST(COALESCE(p.capacity, '') AS TEXT) AS provided_capacity,
  CAST(COALESCE(p.host_keys, '') AS TEXT) AS provided_host_keys,
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
  CAST(COALESCE(mt.at, 0) AS BIGINT) AS maintenance_at, CAST(COALESCE(mt.until, 0) AS BIGINT) AS maintenance_until,
  CAST(COALESCE(mt.ended, 0) AS BIGINT) AS maintenance_ended, CAST(COALESCE(mt.actor, '') AS TEXT) AS maintenance_actor,
  CAST(COALESCE(mt.reason, '') AS TEXT) AS maintenance_reason,
  CAST(COALESCE(ic.generation, 0) AS BIGINT) AS cancel_generation, CAST(COALESCE(ic.at, 0) AS BIGINT) AS cancel_at,
  CAST(COALESCE(ic.actor, '') AS TEXT) AS cancel_actor, CAST(COALESCE(ic.reason, '') AS TEXT) AS cancel_reason,
  CAST(COALESCE(oq.number, 0) AS BIGINT) AS operation_number, CAST(COALESCE(oq.operation, '') AS TEXT) AS operation,
  CAST(COALESCE(oq.at, 0) AS BIGINT) AS operation_at, CAST(COALESCE(oq.actor, '') AS TEXT) AS operation_actor,
  CAST(COALESCE(oq.reason, '') AS TEXT) AS operation_reason,
  CAST(COALESCE(oa.number, 0) AS BIGINT) AS operating_number, CAST(COALESCE(oa.attempt, 0) AS BIGINT) AS operating_attempt,
  CAST(COALESCE(oa.at, 0) AS BIGINT) AS operating_at, CAST(COALESCE(oa.boot_id, '') AS TEXT) AS operating_boot_id,
  CAST(COALESCE(oa.accepted_at, 0) AS BIGINT) AS operating_accepted_at, CAST(COALESCE(oa.checked_at, 0) AS BIGINT) AS operating_checked_at,
  CAST(COALESCE(oe.number, 0) AS BIGINT) AS operated_number, CAST(COALESCE(oe.at, 0) AS BIGINT) AS operated_at,
  CAST(COALESCE(oe.ok, 0) AS BIGINT) AS operated_ok, CAST(COALESCE(oe.detail, '') AS TEXT) AS operated_detail,
  CAST(COALESCE(re.since, 0) AS BIGINT) AS repair_since, CAST(COALESCE(re.rung, '') AS TEXT) AS repair_rung,
  CAST(COALESCE(re.at, 0) AS BIGINT) AS repair_at, CAST(COALESCE(re.agent_starts, 0) AS BIGINT) AS repair_agent_starts,
  CAST(COALESCE(re.reboots, 0) AS BIGINT) AS repair_reboots, CAST(COALESCE(re.power_cycles, 0) AS BIGINT) AS repair_power_cycles,
  CAST(COALESCE(re.reinstalls, 0) AS BIGINT) AS repair_reinstalls,
  CAST(COALESCE(re.takeover_generation, 0) AS BIGINT) AS repair_takeover_generation, CAST(COALESCE(re.boot_id, '') AS TEXT) AS repair_boot_id,
  CAST(COALESCE(pr.levers, '') AS TEXT) AS levers,
  CAST(COALESCE(se.component, '') AS TEXT) AS session_component, CAST(COALESCE(se.host, '') AS TEXT) AS session_host,
  CAST(COALESCE(se.deadline_at, 0) AS BIGINT) AS session_deadline_at, CAST(COALESCE(se.ended_at, 1) AS BIGINT) AS session_ended_at,
  m.due_probe, CAST(COALESCE(rq.seen_up, '') AS TEXT) AS request_seen_up, CAST(COALESCE(att.host_key, '') AS TEXT) AS attempt_host_key,
  CAST(COALESCE(ins.seen_up, '') AS TEXT) AS installed_seen_up,
  CAST(COALESCE(pb.generation, 0) AS BIGINT) AS probe_generation, CAST(COALESCE(pb.attempt, 0) AS BIGINT) AS probe_attempt,
  CAST(COALESCE(pb.at, 0) AS BIGINT) AS probe_at, CAST(COALESCE(pb.answered_at, 0) AS BIGINT) AS probe_answered_at,
  CAST(COALESCE(pb.unanswered_since, 0) AS BIGINT) AS probe_unanswered_since, CAST(COALESCE(pb.detail, '') AS TEXT) AS probe_detail,
  CAST(COALESCE(pb.epoch, 0) AS BIGINT) AS probe_epoch, CAST(COALESCE(pb.session, '') AS TEXT) AS probe_session,
  CAST(COALESCE(ins.erased_at, 0) AS BIGINT) AS installed_erased_at,
  CAST(COALESCE(rp.needs_erase, 0) AS BIGINT) AS report_needs_erase,
  CAST(COALESCE(rp.not_understood, 0) AS BIGINT) AS report_not_understood
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
LEFT JOIN installed ins ON ins.machine = m.id
LEFT JOIN probe pb ON pb.machine = att.machine
LEFT JOIN quarantine q ON q.machine = m.id
LEFT JOIN maintenance mt ON mt.machine = m.id
LEFT JOIN install_cancel ic ON ic.machine = rq.machine
LEFT JOIN operation_request oq ON oq.machine = m.id
LEFT JOIN operation_attempt oa ON oa.machine = oq.machine
LEFT JOIN operation_report oe ON oe.machine = oq.machine
LEFT JOIN repair re ON re.machine = m.id
LEFT JOIN provider pr ON pr.name = m.provider
LEFT JOIN session se ON se.id = NULLIF(m.session, '');
