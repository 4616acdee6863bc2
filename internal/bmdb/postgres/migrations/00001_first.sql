-- The first schema. Conventions, the same for every engine:
--   * instants are BIGINT microseconds since 1970 in database time, durations BIGINT microseconds; 0 means "none";
--   * an absent fact is an absent row; no column is NULL;
--   * a subject is a machine's UUID, or 'provider/' and a provider's name;
--   * each table of facts has one writer, named in its comment.
-- And for this one:
--   * text compares by bytes, whatever the database's collation is: pages and lock orders depend on it;
--   * what changes often is in narrow tables with room left in their pages (fillfactor), so that an update that touches no index
--     stays on its page and its predecessor goes without a vacuum; tables whose updates do touch an index are vacuumed after
--     so many rows, not after a share of the table, so that a claim costs the same in a large fleet.

-- +goose Up

-- Which database this is (rule 11). One row. Written by the engine.
CREATE TABLE database_mark (
  id      TEXT COLLATE "C" NOT NULL PRIMARY KEY, -- system identifier of the server, a slash, OID of the database
  clock   BIGINT NOT NULL, -- latest instant that it is known to have seen
  counter BIGINT NOT NULL  -- the server's timeline
);

-- Why this looks like a restored or copied database; no row once an operator has accepted it. Written at open.
CREATE TABLE restored (
  id       BIGINT NOT NULL PRIMARY KEY, -- always 1
  at       BIGINT NOT NULL,
  evidence TEXT COLLATE "C" NOT NULL
);

-- The numbered policies; every process follows the highest number (rule 10).
CREATE TABLE policy (
  number BIGINT NOT NULL PRIMARY KEY,
  at     BIGINT NOT NULL,
  body   TEXT COLLATE "C" NOT NULL -- JSON of fleet.Policy
);

-- The agent listeners' proof of life, one row for all of them. Written by the agent listener.
CREATE TABLE listener (
  id          BIGINT NOT NULL PRIMARY KEY, -- always 1
  up_since    BIGINT NOT NULL,
  valid_until BIGINT NOT NULL, -- the listener counts as up until here
  promised    BIGINT NOT NULL  -- longest heartbeat interval that agents were asked for lately
) WITH (fillfactor = 20);

-- Proof of life of one component.
CREATE TABLE session (
  id          TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  component   TEXT COLLATE "C" NOT NULL,
  host        TEXT COLLATE "C" NOT NULL,
  pid         BIGINT NOT NULL,
  lease       BIGINT NOT NULL, -- the interval of the session: deadline_at = extended_at + lease
  started_at  BIGINT NOT NULL,
  extended_at BIGINT NOT NULL,
  deadline_at BIGINT NOT NULL, -- may be passed without ending the session: only ended_at ends it
  ended_at    BIGINT NOT NULL, -- 0: not ended; irrevocable (rule 4)
  cause       TEXT COLLATE "C" NOT NULL,
  running     TEXT COLLATE "C" NOT NULL, -- JSON: how many works of each process it had at its last extension
  freed       BIGINT NOT NULL  -- 1: it has ended, and nothing is held through it any more
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
-- deadline_at is not in the index, so that an extension touches no index.
CREATE INDEX session_live ON session (id) WHERE ended_at = 0;
-- What the janitor asks for every two seconds.
CREATE INDEX session_unfreed ON session (id) WHERE ended_at > 0 AND freed = 0;

-- When to look at what: hints, never later than what lifecycle says. The subject's row keeps the instants of its own
-- entries (due_…): an entry that disagrees with it is stale, and whoever meets it removes it.
CREATE TABLE agenda (
  process  TEXT COLLATE "C" NOT NULL,
  due_at   BIGINT NOT NULL,
  subject  TEXT COLLATE "C" NOT NULL,
  provider TEXT COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
-- A claim reads this from its floor on; one descent says that nothing is due, whatever the number of providers.
CREATE INDEX agenda_due ON agenda (process, due_at, subject);

-- Not before this time, because of that cause.
CREATE TABLE backoff (
  subject    TEXT COLLATE "C" NOT NULL,
  process    TEXT COLLATE "C" NOT NULL,
  not_before BIGINT NOT NULL,
  lasts      BIGINT NOT NULL, -- the interval without jitter, from which the next one is computed
  cause      TEXT COLLATE "C" NOT NULL,
  failures   BIGINT NOT NULL,
  PRIMARY KEY (subject, process)
) WITH (fillfactor = 80);

-- Who did what to whom, when, why, and how it ended. Append-only, one partition a day (history_pYYYYMMDD, by
-- UTC), made ahead of time and dropped when too old; what no partition is there for goes to history_default.
-- Work has one row (I4), written when it ends: until then the lane of its subject says when and why it started.
CREATE SEQUENCE history_id;
CREATE TABLE history (
  id         BIGINT NOT NULL DEFAULT nextval('history_id'), -- grows with each row of one subject
  subject    TEXT COLLATE "C" NOT NULL,
  at         BIGINT NOT NULL,
  actor      TEXT COLLATE "C" NOT NULL,
  process    TEXT COLLATE "C" NOT NULL, -- '' where no process is concerned
  epoch      BIGINT NOT NULL, -- of the work that it is about; 0: it is not about work
  started_at BIGINT NOT NULL, -- when the work started that ended here; 0: the row is no end of work
  why        TEXT COLLATE "C" NOT NULL, -- why it started
  event      TEXT COLLATE "C" NOT NULL,
  detail     TEXT COLLATE "C" NOT NULL,
  retry_at   BIGINT NOT NULL,
  session    TEXT COLLATE "C" NOT NULL
) PARTITION BY RANGE (at);
CREATE TABLE history_default PARTITION OF history DEFAULT;
CREATE INDEX history_subject ON history (subject, id);

-- One configured provider instance. Its row is the lock of everything that is decided about the provider as a whole.
CREATE TABLE provider (
  name           TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  kind           TEXT COLLATE "C" NOT NULL,
  max_machines   BIGINT NOT NULL,
  created_at     BIGINT NOT NULL,
  last_pass_at   BIGINT NOT NULL, -- when the last finished provision pass started
  last_update_at BIGINT NOT NULL,
  pass_result    TEXT COLLATE "C" NOT NULL,
  machines       BIGINT NOT NULL  -- how many rows of machine there are; kept right under this row's lock
) WITH (fillfactor = 50);

-- The lanes of a provider, which has one for each of its processes. They belong to whoever has the provider's row locked.
-- The columns are those of a machine's lane.
CREATE TABLE provider_lane (
  provider TEXT COLLATE "C" NOT NULL,
  process  TEXT COLLATE "C" NOT NULL,
  epoch    BIGINT NOT NULL,
  session  TEXT COLLATE "C" NOT NULL,
  since    BIGINT NOT NULL,
  why      TEXT COLLATE "C" NOT NULL,
  note     TEXT COLLATE "C" NOT NULL,
  revision BIGINT NOT NULL,
  due_at   BIGINT NOT NULL,
  PRIMARY KEY (provider, process)
) WITH (fillfactor = 50);

-- Who wants to start one more work of a process whose number at one provider is limited locks this row, and then counts.
CREATE TABLE concurrency_limit (
  provider TEXT COLLATE "C" NOT NULL,
  process  TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (provider, process)
) WITH (fillfactor = 50);

-- One managed server, from the moment that its intent is opened. Its row is the lock of everything about the machine,
-- and its lane: who holds the host, for what. No index covers what a claim or an end changes (but for what is limited), so
-- that each is one update that stays on its page.
CREATE TABLE machine (
  id                  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  provider            TEXT COLLATE "C" NOT NULL,
  provider_id         TEXT COLLATE "C" NOT NULL, -- '' until the provider has created it
  created_at          BIGINT NOT NULL,
  takeover_generation BIGINT NOT NULL, -- the newest that was minted
  epoch               BIGINT NOT NULL, -- of the newest holder; grows for ever (I3), see token.epoch
  session             TEXT COLLATE "C" NOT NULL, -- of the holder; '' when the lane is free
  process             TEXT COLLATE "C" NOT NULL, -- what it is held for; '' when free
  limited             TEXT COLLATE "C" NOT NULL, -- the process, where its number at one provider is limited; else ''
  since               BIGINT NOT NULL, -- when the work started
  why                 TEXT COLLATE "C" NOT NULL, -- why it started
  note                TEXT COLLATE "C" NOT NULL, -- identity of the last write in the middle of the work; makes a repeated one harmless
  revision            BIGINT NOT NULL, -- grows with each write of these columns; each names the one that it has read
  due_agent_start     BIGINT NOT NULL, -- instants of the machine's entries in the agenda; 0: there is none
  due_install         BIGINT NOT NULL,
  due_recovery        BIGINT NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX machine_provider_id ON machine (provider, provider_id) WHERE provider_id <> '';
CREATE INDEX machine_limited ON machine (provider, limited) WHERE limited <> '';

-- What people filter by, written with the agenda by the same rewrite.
CREATE TABLE machine_state (
  machine  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  provider TEXT COLLATE "C" NOT NULL,
  state    TEXT COLLATE "C" NOT NULL,
  reason   TEXT COLLATE "C" NOT NULL,
  since    BIGINT NOT NULL,
  policy   BIGINT NOT NULL -- policy and rules that the agenda was computed under (rule 10), as one number
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX machine_state_state ON machine_state (provider, state, machine);
CREATE INDEX machine_state_policy ON machine_state (policy, machine);

-- How many machines are in which state of which provider: the sum over the rows. Each transaction that changes states appends what
-- it changed, so that none waits for another; the janitor folds the rows, with the provider's row locked.
CREATE TABLE state_count (
  id       BIGINT NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  provider TEXT COLLATE "C" NOT NULL,
  state    TEXT COLLATE "C" NOT NULL,
  n        BIGINT NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_insert_threshold = -1);

-- What is about to be asked of a provider. A row exists while the outcome is open. Written by the provisioner.
CREATE TABLE intent (
  machine    TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  provider   TEXT COLLATE "C" NOT NULL,
  capacity   TEXT COLLATE "C" NOT NULL,
  token      TEXT COLLATE "C" NOT NULL,
  opened_at  BIGINT NOT NULL,
  planned_at BIGINT NOT NULL,
  called_at  BIGINT NOT NULL,
  calls      BIGINT NOT NULL, -- calls that could have created something
  rejected   BIGINT NOT NULL  -- those of them that were definitely rejected
);
-- One open intent per piece of capacity.
CREATE UNIQUE INDEX intent_capacity ON intent (provider, capacity);

-- The tokens that travelled to a provider: a device that surfaces with one is adopted. Kept while their machine is there, and for
-- long after its row has gone (DB.PruneTokens). Written by the provisioner.
CREATE TABLE token (
  token     TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  provider  TEXT COLLATE "C" NOT NULL,
  machine   TEXT COLLATE "C" NOT NULL,
  capacity  TEXT COLLATE "C" NOT NULL,
  opened_at BIGINT NOT NULL,
  called_at BIGINT NOT NULL, -- last call, of those without an answer where there is one; 0: none
  closed_at BIGINT NOT NULL, -- 0: its intent is open
  outcome   TEXT COLLATE "C" NOT NULL, -- provided, rejected, other-owner, adopted
  epoch     BIGINT NOT NULL  -- that the machine's lane had when its row went; it goes on from there if the machine comes back
);
CREATE INDEX token_provider ON token (provider, token);
CREATE UNIQUE INDEX token_machine ON token (machine);

-- What the provider last said. Written by the provisioner at creation or adoption, and where a list of hosts
-- has changed; by the updater otherwise.
CREATE TABLE fact_provided (
  machine    TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  provider   TEXT COLLATE "C" NOT NULL,
  at         BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  active_at  BIGINT NOT NULL,
  status     TEXT COLLATE "C" NOT NULL,
  detail     TEXT COLLATE "C" NOT NULL,
  hostname   TEXT COLLATE "C" NOT NULL,
  address    TEXT COLLATE "C" NOT NULL, -- '' while there is none
  location   TEXT COLLATE "C" NOT NULL,
  capacity   TEXT COLLATE "C" NOT NULL,
  host_keys  TEXT COLLATE "C" NOT NULL  -- one per line, in authorized_keys form
);
CREATE INDEX fact_provided_changing ON fact_provided (provider, status, at) WHERE status IN ('creating', 'deleting', 'off');
CREATE INDEX fact_provided_hostname ON fact_provided (hostname);

-- A takeover that succeeded. Written by the initializer.
CREATE TABLE fact_agent_started (
  machine             TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  at                  BIGINT NOT NULL,
  takeover_generation BIGINT NOT NULL,
  public_key          BYTEA   NOT NULL,
  agent_version       TEXT COLLATE "C" NOT NULL,
  boot_id             TEXT COLLATE "C" NOT NULL
);

-- The agent of a takeover generation has spoken. Written by the agent API.
CREATE TABLE fact_agent_seen (
  machine             TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  takeover_generation BIGINT NOT NULL,
  first_at            BIGINT NOT NULL,
  boot_id             TEXT COLLATE "C" NOT NULL
);

-- When an agent was last heard; the one table that repeated heartbeats write, so no index may ever cover last_at. Written by the
-- agent API.
CREATE TABLE agent_last_seen (
  machine             TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  takeover_generation BIGINT NOT NULL,
  last_at             BIGINT NOT NULL
) WITH (fillfactor = 50);

-- A hardware report is stored. Written by the agent API.
CREATE TABLE fact_hardware (
  machine  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  first_at BIGINT NOT NULL,
  at       BIGINT NOT NULL,
  digest   TEXT COLLATE "C" NOT NULL
);

-- The encoded report itself, apart from the fact because it is large and rarely read. Written with the fact.
CREATE TABLE hardware_report (
  machine TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  report  BYTEA NOT NULL
);

-- The newest operating system that is wanted. Kept when the machine's row goes with a rejected intent, so that a late device finds
-- it. Written by operators, and by the provisioner for new machines.
CREATE TABLE install_request (
  machine         TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  generation      BIGINT NOT NULL,
  at              BIGINT NOT NULL,
  actor           TEXT COLLATE "C" NOT NULL,
  image           TEXT COLLATE "C" NOT NULL, -- JSON of fleet.Image
  root_disk       TEXT COLLATE "C" NOT NULL, -- JSON of fleet.DiskSelector
  first_boot_data BYTEA   NOT NULL
);

-- The newest attempt, committed before it is handed out (I9). Written by the agent API.
CREATE TABLE install_attempt (
  machine     TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  generation  BIGINT NOT NULL,
  attempt     BIGINT NOT NULL,
  at          BIGINT NOT NULL,
  secret_hash BYTEA   NOT NULL
);

-- Until when an open attempt has time. A row exists while the attempt is open. Written with the attempt.
CREATE TABLE install_deadline (
  machine TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  at      BIGINT NOT NULL
);
CREATE INDEX install_deadline_at ON install_deadline (at, machine);

-- How the newest attempt that ended did so. Written by the agent API, and by the janitor when time ran out.
CREATE TABLE install_report (
  machine    TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  generation BIGINT NOT NULL,
  attempt    BIGINT NOT NULL,
  at         BIGINT NOT NULL,
  ok         BIGINT NOT NULL, -- 1 or 0
  error      TEXT COLLATE "C" NOT NULL,
  disk       TEXT COLLATE "C" NOT NULL,
  lasted     BIGINT NOT NULL,
  bytes      BIGINT NOT NULL
);

-- An installed system has been seen to come up. Written by the agent API.
CREATE TABLE installed (
  machine    TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  generation BIGINT NOT NULL,
  attempt    BIGINT NOT NULL,
  at         BIGINT NOT NULL,
  boot_id    TEXT COLLATE "C" NOT NULL
);

-- Keeps all work away. Written by operators, and by the recoverer at the end of its ladder.
CREATE TABLE quarantine (
  machine TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  at      BIGINT NOT NULL,
  actor   TEXT COLLATE "C" NOT NULL,
  reason  TEXT COLLATE "C" NOT NULL
);

-- Host keys pinned at first contact. Written by the initializer.
CREATE TABLE host_key (
  machine  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  at       BIGINT NOT NULL,
  pinned   TEXT COLLATE "C" NOT NULL -- one per line, in authorized_keys form
);

-- Capacity that failed sits out until then. Written by the provisioner.
CREATE TABLE penalty (
  provider TEXT COLLATE "C" NOT NULL,
  capacity TEXT COLLATE "C" NOT NULL,
  until    BIGINT NOT NULL,
  cause    TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (provider, capacity)
);

-- Provider and BMDB disagree. Written by the provisioner.
CREATE TABLE discrepancy (
  provider    TEXT COLLATE "C" NOT NULL,
  kind        TEXT COLLATE "C" NOT NULL,
  provider_id TEXT COLLATE "C" NOT NULL,
  machine     TEXT COLLATE "C" NOT NULL,
  since       BIGINT NOT NULL,
  evidence    TEXT COLLATE "C" NOT NULL,
  remedy      TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (provider, kind, provider_id, machine)
);

-- Everything that lifecycle judges a machine by, its backoffs apart, and what the last judgement left. Each join
-- finds at most one row, by its primary key. A fact that cannot be without another one is looked up by that one's key:
-- of a machine without an agent nothing is looked up that only an agent says.
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

-- What a list says of a machine.
CREATE VIEW machine_line AS
SELECT m.id, m.provider, m.provider_id, m.created_at, m.takeover_generation,
  CAST(COALESCE(st.state, '') AS TEXT) AS state, CAST(COALESCE(st.reason, '') AS TEXT) AS reason,
  CAST(COALESCE(st.since, 0) AS BIGINT) AS since,
  CAST(COALESCE(p.hostname, '') AS TEXT) AS hostname, CAST(COALESCE(p.address, '') AS TEXT) AS address,
  CAST(COALESCE(p.location, '') AS TEXT) AS location, CAST(COALESCE(a.agent_version, '') AS TEXT) AS agent_version,
  CAST(COALESCE(ls.last_at, 0) AS BIGINT) AS last_at, CAST(COALESCE(rq.generation, 0) AS BIGINT) AS install_generation,
  m.process
FROM machine m
LEFT JOIN machine_state st ON st.machine = m.id
LEFT JOIN fact_provided p ON p.machine = m.id
LEFT JOIN fact_agent_started a ON a.machine = m.id
LEFT JOIN agent_last_seen ls ON ls.machine = m.id
LEFT JOIN install_request rq ON rq.machine = m.id;

-- +goose Down
DROP VIEW machine_line;
DROP VIEW machine_record;
DROP TABLE discrepancy;
DROP TABLE penalty;
DROP TABLE host_key;
DROP TABLE quarantine;
DROP TABLE installed;
DROP TABLE install_report;
DROP TABLE install_deadline;
DROP TABLE install_attempt;
DROP TABLE install_request;
DROP TABLE hardware_report;
DROP TABLE fact_hardware;
DROP TABLE agent_last_seen;
DROP TABLE fact_agent_seen;
DROP TABLE fact_agent_started;
DROP TABLE fact_provided;
DROP TABLE token;
DROP TABLE intent;
DROP TABLE state_count;
DROP TABLE machine_state;
DROP TABLE machine;
DROP TABLE concurrency_limit;
DROP TABLE provider_lane;
DROP TABLE provider;
DROP TABLE history;
DROP SEQUENCE history_id;
DROP TABLE backoff;
DROP TABLE agenda;
DROP TABLE session;
DROP TABLE listener;
DROP TABLE policy;
DROP TABLE restored;
DROP TABLE database_mark;
