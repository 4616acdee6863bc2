-- A machine that is adopted may run an operating system that is to be left alone.

-- +goose Up
-- 1: an operator says that an operating system runs there. The machine is marked as installed when
-- it is taken in.
ALTER TABLE adoption ADD COLUMN installed BIGINT NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE adoption DROP COLUMN installed;
