-- One head of the agenda for each process, instead of one for each process and provider; state counts that are kept, not counted.

-- +goose Up

DROP INDEX agenda_due;
CREATE INDEX agenda_due ON agenda (process, due_at, subject);

-- How many machines are in which state of which provider: the sum over the rows. Each transaction that changes states appends what
-- it changed; the janitor folds the rows, with the provider's row locked.
CREATE TABLE state_count (
  id       INTEGER NOT NULL PRIMARY KEY,
  provider TEXT   NOT NULL,
  state    TEXT   NOT NULL,
  n        BIGINT NOT NULL
);
INSERT INTO state_count (provider, state, n) SELECT provider, state, count(*) FROM machine_state GROUP BY provider, state;

-- +goose Down

DROP TABLE state_count;
DROP INDEX agenda_due;
CREATE INDEX agenda_due ON agenda (process, provider, due_at, subject);
