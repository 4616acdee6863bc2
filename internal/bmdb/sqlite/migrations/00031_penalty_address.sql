-- The host of a list that was released is known under another ID and on another list, too.

-- +goose Up
-- The address that the host of a list had when it was released; '': the penalty is of no such host.
ALTER TABLE penalty ADD COLUMN address TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE penalty DROP COLUMN address;
