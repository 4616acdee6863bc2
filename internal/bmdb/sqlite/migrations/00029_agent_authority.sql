-- The authority that agents are given: a control plane with another one is not to join.

-- +goose Up
-- One row at most: the authority of the agent API that the control planes of this fleet have made,
-- and share. Written by the first one that starts with it, and by operators who accept another.
CREATE TABLE agent_authority (
  id BIGINT NOT NULL PRIMARY KEY, -- always 1
  at BIGINT NOT NULL,
  fingerprint TEXT NOT NULL -- SHA-256 of the certificate, as openssl x509 -fingerprint prints it
);

-- +goose Down
DROP TABLE agent_authority;
