-- Machines that were silent before a listener went away stay silent while it comes back.

-- +goose Up
-- The newest time before up_since in which agents were able to reach a listener without
-- interruption, for as long as any silence that counts takes; 0: there was none.
ALTER TABLE listener ADD COLUMN listened_since BIGINT NOT NULL DEFAULT 0;
ALTER TABLE listener ADD COLUMN listened_until BIGINT NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE listener DROP COLUMN listened_until;
ALTER TABLE listener DROP COLUMN listened_since;
