-- Since when hosts have answered nobody.

-- +goose Up
-- What the failures of a machine say of its host: since when it has answered nobody who tried to
-- reach it (0: it has answered, or nobody tried), and whether it answered last (1 or 0).
ALTER TABLE backoff ADD COLUMN unanswered_since BIGINT NOT NULL DEFAULT 0;
ALTER TABLE backoff ADD COLUMN answered BIGINT NOT NULL DEFAULT 0;
CREATE INDEX backoff_unanswered ON backoff (unanswered_since) WHERE unanswered_since > 0;

-- +goose Down
DROP INDEX backoff_unanswered;
ALTER TABLE backoff DROP COLUMN answered;
ALTER TABLE backoff DROP COLUMN unanswered_since;
