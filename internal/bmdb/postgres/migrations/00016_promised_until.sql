-- A shorter promise than another control plane's does not replace it.

-- +goose Up
-- Until when a promise below half of `promised` does not count. Written by the agent listener.
ALTER TABLE listener ADD COLUMN promised_until BIGINT NOT NULL DEFAULT 0;
-- The longest of those that do not count yet. 0: there is none. Written by the agent listener.
ALTER TABLE listener ADD COLUMN promised_less BIGINT NOT NULL DEFAULT 0;
-- Agents may follow what the version before has promised them.
UPDATE listener SET promised_until = valid_until + promised;

-- +goose Down
ALTER TABLE listener DROP COLUMN promised_less;
ALTER TABLE listener DROP COLUMN promised_until;
