-- What a holder read at its claim need not be read again at its end, unless somebody wrote about the machine meanwhile. An expansion.

-- +goose Up

-- Grows with each write of facts, backoffs, agenda or state of the subject while somebody else holds the lane.
ALTER TABLE lane ADD COLUMN revision BIGINT NOT NULL DEFAULT 0;

-- +goose Down

ALTER TABLE lane DROP COLUMN revision;
