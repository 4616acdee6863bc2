-- Which machines were given up when they were to be replaced.

-- +goose Up
-- 1: when it was asked for, the provider had given the machine up, or recovery had found no other
-- step for it. Its capacity is then not used again at once. 0: neither, or it was asked for by an
-- older version.
ALTER TABLE operation_request ADD COLUMN given_up BIGINT NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE operation_request DROP COLUMN given_up;
