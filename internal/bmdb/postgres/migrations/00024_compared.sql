-- When the list of a provider was compared with the database.

-- +goose Up
-- When the last pass had begun that recorded discrepancies, however it ended. 0: none since this
-- column is there.
ALTER TABLE provider ADD COLUMN compared_at BIGINT NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE provider DROP COLUMN compared_at;
