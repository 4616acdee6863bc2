-- Who works at which provider.

-- +goose Up
-- The names of the providers that the session serves, a blank between two. '*': all, or not said.
ALTER TABLE session ADD COLUMN providers TEXT NOT NULL DEFAULT '*';

-- +goose Down
ALTER TABLE session DROP COLUMN providers;
