-- An installed system proves itself also after a newer attempt was handed out, because that may
-- have been called off before it wrote anything.

-- +goose Up
ALTER TABLE installed ADD COLUMN secret_hash BYTEA NOT NULL DEFAULT ''; -- of its attempt; empty while that is the newest one

-- +goose Down
ALTER TABLE installed DROP COLUMN secret_hash;
