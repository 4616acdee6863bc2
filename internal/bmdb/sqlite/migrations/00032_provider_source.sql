-- A provider that is pointed at another project has its machines in the one before.

-- +goose Up
-- What the machines of the provider belong to: the project of an API; '': the kind has no such
-- thing, or nobody has said yet.
ALTER TABLE provider ADD COLUMN source TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE provider DROP COLUMN source;
