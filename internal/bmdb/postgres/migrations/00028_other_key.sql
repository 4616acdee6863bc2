-- A host that shows another key is told from one that refuses ours.

-- +goose Up
-- A third value of answered: 2 is that the host does not let us in, and 3 that it has shown another
-- host key than the known one.
UPDATE backoff SET answered = 3 WHERE answered = 2 AND cause LIKE '%has the host key SHA256:%';

-- +goose Down
UPDATE backoff SET answered = 2 WHERE answered = 3;
