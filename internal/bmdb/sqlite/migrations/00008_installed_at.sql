-- Which installed systems have come up lately.

-- +goose Up
CREATE INDEX installed_at ON installed (at);

-- +goose Down
DROP INDEX installed_at;
