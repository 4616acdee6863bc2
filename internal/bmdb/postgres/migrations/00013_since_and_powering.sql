-- Since when work has failed, and machines on their way on or off.

-- +goose Up
-- When the first of the failures in a row was, so that what has failed for too long is given up. 0:
-- nothing was tried, because the call waited for its turn; or an older release has counted.
ALTER TABLE backoff ADD COLUMN since BIGINT NOT NULL DEFAULT 0;
-- A machine that is powering may change by itself, too.
DROP INDEX fact_provided_changing;
CREATE INDEX fact_provided_changing ON fact_provided (provider, status, at) WHERE status IN ('creating', 'deleting', 'off', 'powering');

-- +goose Down
DROP INDEX fact_provided_changing;
CREATE INDEX fact_provided_changing ON fact_provided (provider, status, at) WHERE status IN ('creating', 'deleting', 'off');
ALTER TABLE backoff DROP COLUMN since;
