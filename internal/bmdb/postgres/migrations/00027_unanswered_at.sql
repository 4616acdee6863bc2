-- When a host was asked last that has never answered.

-- +goose Up
-- When the newest failure was in which the host did not answer; 0: it has answered since, or nobody
-- got as far as to ask. A failure that has another cause leaves it.
ALTER TABLE backoff ADD COLUMN unanswered_at BIGINT NOT NULL DEFAULT 0;
UPDATE backoff SET unanswered_at = unanswered_since WHERE unanswered_since > 0;

-- +goose Down
ALTER TABLE backoff DROP COLUMN unanswered_at;
