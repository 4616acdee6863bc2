-- How much of a process goes on at one provider at once is limited by slots. An expansion: the version before goes on beside it, and
-- takes none.

-- +goose Up

-- Who has which of the places that a storm limit leaves. A slot is occupied exactly while its lane is held and has that epoch, so
-- whatever frees the lane frees the slot. Rows are made when they are first needed, and stay.
CREATE TABLE storm_slot (
  process  TEXT   NOT NULL,
  provider TEXT   NOT NULL,
  slot     BIGINT NOT NULL, -- from 1
  subject  TEXT   NOT NULL, -- '' when it was never taken, as is the lane
  lane     TEXT   NOT NULL,
  epoch    BIGINT NOT NULL,
  policy   BIGINT NOT NULL, -- number of the policy under which it was taken
  PRIMARY KEY (process, provider, slot)
);
-- What a claim reads when a provider has no slot left, so as not to go through all that is due there. Recovery alone is limited.
CREATE INDEX agenda_recovery ON agenda (provider, due_at, subject) WHERE process = 'recovery';

-- +goose Down

DROP INDEX agenda_recovery;
DROP TABLE storm_slot;
