-- Backoffs are counted by process, and by what they say of a host.

-- +goose Up
-- Those of a process that are not over.
CREATE INDEX backoff_process ON backoff (process, not_before);
-- Those of hosts that let nobody in.
CREATE INDEX backoff_refused ON backoff (process, subject) WHERE answered > 1;
-- Those of installed systems that could not be asked whether they are up.
CREATE INDEX backoff_unasked ON backoff (process, since, subject) WHERE process = 'probe' AND since > 0;
-- Hosts that have shown another key than the known one.
CREATE INDEX host_key_refused ON host_key (machine) WHERE refused <> '';

-- +goose Down
DROP INDEX host_key_refused;
DROP INDEX backoff_unasked;
DROP INDEX backoff_refused;
DROP INDEX backoff_process;
