-- name: PutInstallRequest :exec
INSERT INTO install_request (machine, generation, at, actor, image, root_disk, first_boot_data, seen_up)
VALUES (sqlc.arg(machine), sqlc.arg(generation), sqlc.arg(at), sqlc.arg(actor), sqlc.arg(image), sqlc.arg(root_disk),
  sqlc.arg(first_boot_data), sqlc.arg(seen_up))
ON CONFLICT (machine) DO UPDATE
SET generation = excluded.generation, at = excluded.at, actor = excluded.actor, image = excluded.image,
  root_disk = excluded.root_disk, first_boot_data = excluded.first_boot_data, seen_up = excluded.seen_up;

-- name: GetFirstBootData :one
SELECT first_boot_data FROM install_request WHERE machine = sqlc.arg(machine);

-- name: PutInstallAttempt :exec
INSERT INTO install_attempt (machine, generation, attempt, at, secret_hash, host_key)
VALUES (sqlc.arg(machine), sqlc.arg(generation), sqlc.arg(attempt), sqlc.arg(at), sqlc.arg(secret_hash), sqlc.arg(host_key))
ON CONFLICT (machine) DO UPDATE
SET generation = excluded.generation, attempt = excluded.attempt, at = excluded.at, secret_hash = excluded.secret_hash,
  host_key = excluded.host_key;

-- name: PutInstallDeadline :exec
INSERT INTO install_deadline (machine, at) VALUES (sqlc.arg(machine), sqlc.arg(at))
ON CONFLICT (machine) DO UPDATE SET at = excluded.at;

-- name: DeleteInstallDeadline :exec
DELETE FROM install_deadline WHERE machine = sqlc.arg(machine);

-- name: ListInstallsPastDeadline :many
SELECT machine FROM install_deadline WHERE at <= sqlc.arg(now) ORDER BY at, machine LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- name: PutInstallReport :exec
INSERT INTO install_report (machine, generation, attempt, at, ok, error, disk, lasted, bytes, held_generation, held_attempt, needs_erase,
  not_understood)
VALUES (sqlc.arg(machine), sqlc.arg(generation), sqlc.arg(attempt), sqlc.arg(at), sqlc.arg(ok), sqlc.arg(error), sqlc.arg(disk),
  sqlc.arg(lasted), sqlc.arg(bytes), sqlc.arg(held_generation), sqlc.arg(held_attempt), sqlc.arg(needs_erase),
  sqlc.arg(not_understood))
ON CONFLICT (machine) DO UPDATE
SET generation = excluded.generation, attempt = excluded.attempt, at = excluded.at, ok = excluded.ok, error = excluded.error,
  disk = excluded.disk, lasted = excluded.lasted, bytes = excluded.bytes,
  held_generation = excluded.held_generation, held_attempt = excluded.held_attempt, needs_erase = excluded.needs_erase,
  not_understood = excluded.not_understood;

-- name: PutInstalled :exec
INSERT INTO installed (machine, generation, attempt, at, boot_id, seen_up, secret_hash)
VALUES (sqlc.arg(machine), sqlc.arg(generation), sqlc.arg(attempt), sqlc.arg(at), sqlc.arg(boot_id), sqlc.arg(seen_up), sqlc.arg(secret_hash))
ON CONFLICT (machine) DO UPDATE
SET generation = excluded.generation, attempt = excluded.attempt, at = excluded.at, boot_id = excluded.boot_id,
  seen_up = excluded.seen_up, secret_hash = excluded.secret_hash, erased_at = 0;

-- The provider reinstalls the machine, for a step of recovery or for somebody else. One that was
-- begun before the system came up was left by an older version, which wrote the row anew.
-- name: PutErased :exec
UPDATE installed SET erased_at = sqlc.arg(at) WHERE machine = sqlc.arg(machine) AND erased_at <= installed.at;

-- That step is taken back, or the installed system has answered since.
-- name: DeleteErased :exec
UPDATE installed SET erased_at = 0 WHERE machine = sqlc.arg(machine) AND erased_at = sqlc.arg(at);

-- The attempt of the installed system is about to be replaced by a newer one.
-- name: KeepInstalledSecret :exec
UPDATE installed SET secret_hash = sqlc.arg(secret_hash)
WHERE machine = sqlc.arg(machine) AND generation = sqlc.arg(generation) AND attempt = sqlc.arg(attempt);

-- name: GetInstalledSecret :many
SELECT secret_hash FROM installed
WHERE machine = sqlc.arg(machine) AND generation = sqlc.arg(generation) AND attempt = sqlc.arg(attempt);

-- The installed system was seen to be up again.
-- name: SetInstalledAgain :exec
UPDATE installed SET at = sqlc.arg(at), boot_id = '' WHERE machine = sqlc.arg(machine);

-- name: GetInstallDeadline :many
SELECT at FROM install_deadline WHERE machine = sqlc.arg(machine);

-- name: PutProbe :exec
INSERT INTO probe (machine, generation, attempt, at, answered_at, unanswered_since, detail, epoch, session)
VALUES (sqlc.arg(machine), sqlc.arg(generation), sqlc.arg(attempt), sqlc.arg(at), sqlc.arg(answered_at), sqlc.arg(unanswered_since),
  sqlc.arg(detail), sqlc.arg(epoch), sqlc.arg(session))
ON CONFLICT (machine) DO UPDATE
SET generation = excluded.generation, attempt = excluded.attempt, at = excluded.at, answered_at = excluded.answered_at,
  unanswered_since = excluded.unanswered_since, detail = excluded.detail, epoch = excluded.epoch, session = excluded.session;

-- name: DropProbe :exec
DELETE FROM probe WHERE machine = sqlc.arg(machine);
