-- Why recovery is stopped, and the silence that it was stopped for: both were read from who had
-- made the stop, and how its reason ends.

-- +goose Up
-- One of fleet.StopCauses; empty where a release before this column has made the stop. It is that
-- of the stop made at cause_at: such a release writes another one over it, and leaves the cause.
ALTER TABLE recovery_hold ADD COLUMN cause TEXT NOT NULL DEFAULT '';
ALTER TABLE recovery_hold ADD COLUMN cause_at BIGINT NOT NULL DEFAULT 0;
UPDATE recovery_hold SET cause_at = at, cause = CASE
  WHEN actor = 'policy' OR actor = 'bmdb' AND reason LIKE 'recovery has restarted %' THEN 'budget'
  WHEN actor = 'bmdb' AND reason LIKE '%: the fault is probably ours (listener, network, certificate, clock)' THEN 'silence'
  WHEN actor = 'bmdb' AND reason LIKE '%; the others were heard again, and these still have time' THEN 'grace'
  ELSE 'asked' END;

-- One row at most: the silence of many machines at once for which recovery was stopped, or goes on
-- by a person's word. It is over when most of them have been heard. Written by the janitor, and by
-- operators who let recovery go on.
CREATE TABLE known_silence (
  id BIGINT NOT NULL PRIMARY KEY, -- always 1
  at BIGINT NOT NULL
);
INSERT INTO known_silence (id, at) SELECT id, at FROM recovery_hold WHERE actor = 'bmdb' AND cause <> 'grace';

-- +goose Down
DROP TABLE known_silence;
ALTER TABLE recovery_hold DROP COLUMN cause_at;
ALTER TABLE recovery_hold DROP COLUMN cause;
