-- What people ask for and what recovery does: maintenance, operations, the recovery ladder, stops
-- of the whole line, plans.

-- +goose Up
-- The view comes first: whoever reads it has its lock before those of the tables.
DROP VIEW machine_record;

ALTER TABLE machine ADD COLUMN due_operation BIGINT NOT NULL DEFAULT 0; -- instant of its entry in the agenda; 0: there is none

ALTER TABLE provider ADD COLUMN levers TEXT NOT NULL DEFAULT ''; -- what it can do to a machine: fleet.Lever, with blanks between
ALTER TABLE provider ADD COLUMN paused_at BIGINT NOT NULL DEFAULT 0; -- nothing is created there since then; 0: it is not paused
ALTER TABLE provider ADD COLUMN paused_by TEXT NOT NULL DEFAULT '';
ALTER TABLE provider ADD COLUMN paused_why TEXT NOT NULL DEFAULT '';

-- Keeps everything away from the host, and makes its silence expected. The row stays after its end,
-- because silence counts from there. Written by operators; its end by time, by the loop that
-- carries operations out.
CREATE TABLE maintenance (
  machine TEXT NOT NULL PRIMARY KEY,
  at      BIGINT NOT NULL,
  until   BIGINT NOT NULL, -- 0: until a person ends it
  ended   BIGINT NOT NULL, -- 1 or 0
  actor   TEXT NOT NULL,
  reason  TEXT NOT NULL
);

-- An install that is not wanted any more. Written by operators.
CREATE TABLE install_cancel (
  machine    TEXT NOT NULL PRIMARY KEY,
  generation BIGINT NOT NULL,
  at         BIGINT NOT NULL,
  actor      TEXT NOT NULL,
  reason     TEXT NOT NULL
);

-- The newest operation that was asked for. Written by operators, and for machines that their
-- provider gave up by the policy.
CREATE TABLE operation_request (
  machine   TEXT NOT NULL PRIMARY KEY,
  number    BIGINT NOT NULL,
  operation TEXT NOT NULL,
  at        BIGINT NOT NULL,
  actor     TEXT NOT NULL,
  reason    TEXT NOT NULL
);

-- The newest attempt at an operation, committed before the provider is called (rule 7). Written by
-- the loop that carries operations out.
CREATE TABLE operation_attempt (
  machine     TEXT NOT NULL PRIMARY KEY,
  number      BIGINT NOT NULL, -- of the request
  attempt     BIGINT NOT NULL,
  at          BIGINT NOT NULL,
  boot_id     TEXT NOT NULL, -- that the machine had; '': nobody knew
  accepted_at BIGINT NOT NULL, -- 0: the provider has not accepted it, as far as is known
  checked_at  BIGINT NOT NULL  -- when the provider was asked last what has become of it
);

-- How the newest operation that ended did so. Written by the loop that carries operations out, and
-- by operators who withdraw one.
CREATE TABLE operation_report (
  machine TEXT NOT NULL PRIMARY KEY,
  number  BIGINT NOT NULL, -- of the request
  at      BIGINT NOT NULL,
  ok      BIGINT NOT NULL, -- 1 or 0
  detail  TEXT NOT NULL
);

-- How far the recovery ladder has gone. Written by whoever takes a step, before its effect.
CREATE TABLE repair (
  machine             TEXT NOT NULL PRIMARY KEY,
  since               BIGINT NOT NULL,
  rung                TEXT NOT NULL,
  at                  BIGINT NOT NULL,
  agent_starts        BIGINT NOT NULL, -- how often each step was taken
  reboots             BIGINT NOT NULL,
  power_cycles        BIGINT NOT NULL,
  reinstalls          BIGINT NOT NULL,
  takeover_generation BIGINT NOT NULL, -- from before the newest step, as the boot ID
  boot_id             TEXT NOT NULL
);

-- Stops the line: nothing is rebooted, power-cycled or reinstalled by recovery. No row: it runs.
-- Written by operators, and by the janitor when so many machines fall silent together that the
-- fault is probably ours.
CREATE TABLE recovery_hold (
  id     BIGINT NOT NULL PRIMARY KEY, -- always 1
  at     BIGINT NOT NULL,
  until  BIGINT NOT NULL, -- 0: until a person ends it
  actor  TEXT NOT NULL,
  reason TEXT NOT NULL
);

-- A machine of a provider that the BMDB does not know, and that an operator wants managed. The row
-- goes when it is. Written by operators.
CREATE TABLE adoption (
  provider    TEXT NOT NULL,
  provider_id TEXT NOT NULL,
  at          BIGINT NOT NULL,
  actor       TEXT NOT NULL,
  PRIMARY KEY (provider, provider_id)
);

-- What is to be done to many machines, or what destroys something, as it was shown to the operator.
-- Written by operators.
CREATE TABLE plan (
  id           TEXT NOT NULL PRIMARY KEY,
  at           BIGINT NOT NULL,
  expires_at   BIGINT NOT NULL,
  actor        TEXT NOT NULL,
  verb         TEXT NOT NULL,
  reason       TEXT NOT NULL,
  machines     TEXT NOT NULL, -- JSON: what is done to which machine, and what that destroys
  confirmed_at BIGINT NOT NULL  -- 0: not yet
);

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
DROP TABLE plan;
DROP TABLE adoption;
DROP TABLE recovery_hold;
DROP TABLE repair;
DROP TABLE operation_report;
DROP TABLE operation_attempt;
DROP TABLE operation_request;
DROP TABLE install_cancel;
DROP TABLE maintenance;
ALTER TABLE provider DROP COLUMN paused_why;
ALTER TABLE provider DROP COLUMN paused_by;
ALTER TABLE provider DROP COLUMN paused_at;
ALTER TABLE provider DROP COLUMN levers;
ALTER TABLE machine DROP COLUMN due_operation;
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
