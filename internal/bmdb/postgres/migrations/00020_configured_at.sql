-- Which of two configurations an open intent is made by: the one that was read later counts.

-- +goose Up
-- When the configuration was read by which the intent was opened. 0: not said, as by versions
-- before; then it counts as read when the intent was opened.
ALTER TABLE intent ADD COLUMN configured_at BIGINT NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE intent DROP COLUMN configured_at;
