-- The calls to a provider are paced across processes.

-- +goose Up
-- How often a provider may be called is shared by all processes that call it with one token: a row
-- for each such limit. Written by whoever wants to call, or was told by the provider to wait.
CREATE TABLE call_turn (
  call_limit TEXT   NOT NULL PRIMARY KEY, -- a digest of the token and of where it is sent
  first_at   BIGINT NOT NULL, -- first turn of the newest reservation; 0: it would have come too late
  next_at    BIGINT NOT NULL, -- first turn that nobody has
  not_before BIGINT NOT NULL  -- nobody calls before then, because the provider said so; 0: it has not
);

-- +goose Down
DROP TABLE call_turn;
