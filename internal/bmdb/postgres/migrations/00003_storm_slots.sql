-- How much of a process goes on at one provider at once is limited by slots. An expansion: the version before goes on beside it, and
-- takes none. The agenda may be large, so its index is made beside those who write it, which no transaction can do; each step may
-- therefore find that it was done before.

-- +goose NO TRANSACTION
-- +goose Up

-- Who has which of the places that a storm limit leaves. A slot is occupied exactly while its lane is held and has that epoch, so
-- whatever frees the lane frees the slot. Rows are made when they are first needed, and stay.
CREATE TABLE IF NOT EXISTS storm_slot (
  process  TEXT COLLATE "C" NOT NULL,
  provider TEXT COLLATE "C" NOT NULL,
  slot     BIGINT NOT NULL, -- from 1
  subject  TEXT COLLATE "C" NOT NULL, -- '' when it was never taken, as is the lane
  lane     TEXT COLLATE "C" NOT NULL,
  epoch    BIGINT NOT NULL,
  policy   BIGINT NOT NULL, -- number of the policy under which it was taken
  PRIMARY KEY (process, provider, slot)
) WITH (fillfactor = 50);
-- What a claim reads when a provider has no slot left, so as not to go through all that is due there. Recovery alone is limited.
DROP INDEX IF EXISTS agenda_recovery; -- one that was not finished is there all the same
CREATE INDEX CONCURRENTLY agenda_recovery ON agenda (provider, due_at, subject) WHERE process = 'recovery';

-- +goose Down

DROP INDEX IF EXISTS agenda_recovery;
DROP TABLE IF EXISTS storm_slot;
