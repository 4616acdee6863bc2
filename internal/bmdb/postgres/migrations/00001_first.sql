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
  clock   BIGINT NOT NULL, -- when it was first opened, or accepted
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
  cause       TEXT COLLATE "C" NOT NULL
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
-- deadline_at is not in the index, so that an extension touches no index.
CREATE INDEX session_live ON session (id) WHERE ended_at = 0;

-- Who holds what. A row stays when its lane is free, so that epochs grow for ever (I3), even if the machine goes and comes back.
CREATE TABLE lane (
  subject TEXT COLLATE "C" NOT NULL,
  lane    TEXT COLLATE "C" NOT NULL,
  epoch   BIGINT NOT NULL,
  session TEXT COLLATE "C" NOT NULL, -- '' when free
  process TEXT COLLATE "C" NOT NULL,
  since   BIGINT NOT NULL,
  note    TEXT COLLATE "C" NOT NULL, -- identity of the last write in the middle of the work; makes a repeated one harmless
  PRIMARY KEY (subject, lane)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX lane_held ON lane (session, subject) WHERE session <> '';

-- When to look at what: a hint, never later than what lifecycle says.
CREATE TABLE agenda (
  subject  TEXT COLLATE "C" NOT NULL,
  process  TEXT COLLATE "C" NOT NULL,
  provider TEXT COLLATE "C" NOT NULL,
  due_at   BIGINT NOT NULL,
  PRIMARY KEY (subject, process)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
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
CREATE SEQUENCE history_id;
CREATE TABLE history (
  id       BIGINT NOT NULL DEFAULT nextval('history_id'), -- grows with each row of one subject
  subject  TEXT COLLATE "C" NOT NULL,
  at       BIGINT NOT NULL,
  actor    TEXT COLLATE "C" NOT NULL,
  process  TEXT COLLATE "C" NOT NULL, -- '' where no process is concerned
  lane     TEXT COLLATE "C" NOT NULL, -- '' where it is not about work
  epoch    BIGINT NOT NULL,
  edge     TEXT COLLATE "C" NOT NULL, -- 'start' and 'end' of work, '' otherwise
  event    TEXT COLLATE "C" NOT NULL,
  detail   TEXT COLLATE "C" NOT NULL,
  retry_at BIGINT NOT NULL,
  session  TEXT COLLATE "C" NOT NULL
) PARTITION BY RANGE (at);
CREATE TABLE history_default PARTITION OF history DEFAULT;
CREATE INDEX history_subject ON history (subject, id);
-- No unique index says that work has one start and one end (I4): it would have to contain the instant. The lane's row does.

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

-- One managed server, from the moment that its intent is opened. Its row is the lock of everything about the machine.
CREATE TABLE machine (
  id                  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  provider            TEXT COLLATE "C" NOT NULL,
  provider_id         TEXT COLLATE "C" NOT NULL, -- '' until the provider has created it
  created_at          BIGINT NOT NULL,
  takeover_generation BIGINT NOT NULL  -- the newest that was minted
) WITH (fillfactor = 90);
CREATE UNIQUE INDEX machine_provider_id ON machine (provider, provider_id) WHERE provider_id <> '';

-- What people filter by, written with the agenda by the same rewrite.
CREATE TABLE machine_state (
  machine  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  provider TEXT COLLATE "C" NOT NULL,
  state    TEXT COLLATE "C" NOT NULL,
  reason   TEXT COLLATE "C" NOT NULL,
  since    BIGINT NOT NULL,
  policy   BIGINT NOT NULL -- number of the policy that the agenda was computed under (rule 10)
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

-- Every token that ever travelled to a provider, kept for good: a device that surfaces with one is adopted. Written by the provisioner.
CREATE TABLE token (
  token     TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  provider  TEXT COLLATE "C" NOT NULL,
  machine   TEXT COLLATE "C" NOT NULL,
  capacity  TEXT COLLATE "C" NOT NULL,
  opened_at BIGINT NOT NULL,
  called_at BIGINT NOT NULL, -- first call; 0: none
  closed_at BIGINT NOT NULL, -- 0: its intent is open
  outcome   TEXT COLLATE "C" NOT NULL  -- provided, rejected, other-owner, adopted
);
CREATE INDEX token_provider ON token (provider, token);
CREATE UNIQUE INDEX token_machine ON token (machine);

-- What the provider last said. Written by the provisioner at creation or adoption, by the updater from then on.
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
CREATE INDEX fact_provided_changing ON fact_provided (provider) WHERE status IN ('creating', 'deleting', 'off');
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

-- +goose Down
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
DROP TABLE provider;
DROP TABLE history;
DROP SEQUENCE history_id;
DROP TABLE backoff;
DROP TABLE agenda;
DROP TABLE lane;
DROP TABLE session;
DROP TABLE listener;
DROP TABLE policy;
DROP TABLE restored;
DROP TABLE database_mark;
