-- When agent listeners had no room for agents.

-- +goose Up
-- Since when there was none, and until when no silence is declared because of it: the newest such
-- time of any listener. 0: there was none. Written by the agent listener.
ALTER TABLE listener ADD COLUMN full_since BIGINT NOT NULL DEFAULT 0;
ALTER TABLE listener ADD COLUMN full_until BIGINT NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE listener DROP COLUMN full_until;
ALTER TABLE listener DROP COLUMN full_since;
