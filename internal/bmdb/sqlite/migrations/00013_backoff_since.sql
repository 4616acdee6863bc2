-- Since when work has failed.

-- +goose Up
-- When the first of the failures in a row was, so that what has failed for too long is given up. 0:
-- nothing was tried, because the call waited for its turn; or an older release has counted.
ALTER TABLE backoff ADD COLUMN since BIGINT NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE backoff DROP COLUMN since;
