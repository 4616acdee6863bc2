-- What recovery restarts within an hour, over the whole fleet.

-- +goose Up
-- When recovery restarted a machine: by a reboot, a power cycle or a reinstall. Written with the
-- step of the ladder, before its effect. Rows older than an hour go when the next one is written.
CREATE TABLE recovery_restart (
  machine TEXT   NOT NULL,
  at      BIGINT NOT NULL,
  PRIMARY KEY (machine, at)
);
CREATE INDEX recovery_restart_at ON recovery_restart (at);

-- +goose Down
DROP TABLE recovery_restart;
