-- The page of entries behind the one that is given, due or not, whatever their providers; on demand
-- (unfailed = 1) without subjects that failed at the process, and have not succeeded since.
-- name: ListAgenda :many
SELECT a.due_at, a.subject, a.provider FROM agenda AS a
WHERE a.process = sqlc.arg(process)
  AND (a.due_at, a.subject) > (CAST(sqlc.arg(after_due_at) AS BIGINT), CAST(sqlc.arg(after_subject) AS TEXT))
  AND (CAST(sqlc.arg(unfailed) AS BIGINT) = 0
    OR NOT EXISTS (SELECT 1 FROM backoff AS b WHERE b.subject = a.subject AND b.process = a.process AND b.cause <> ''))
ORDER BY a.due_at, a.subject LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- ListAgenda of machines for a process whose number is limited, without those of the providers and
-- locations that places names (⟨provider│location⟩, or ⟨provider│⟩ for all of it), whatever number
-- of them is due.
-- name: ListAgendaLimited :many
SELECT a.due_at, a.subject, a.provider, CAST(COALESCE(p.location, '') AS TEXT) AS location
FROM agenda AS a LEFT JOIN fact_provided AS p ON p.machine = a.subject
WHERE a.process = sqlc.arg(process)
  AND (a.due_at, a.subject) > (CAST(sqlc.arg(after_due_at) AS BIGINT), CAST(sqlc.arg(after_subject) AS TEXT))
  AND (CAST(sqlc.arg(places) AS TEXT) = ''
    OR replace(replace(CAST(sqlc.arg(places) AS TEXT), '⟨' || a.provider || '│⟩', ''),
      '⟨' || a.provider || '│' || COALESCE(p.location, '') || '⟩', '') = CAST(sqlc.arg(places) AS TEXT))
  AND (CAST(sqlc.arg(unfailed) AS BIGINT) = 0
    OR NOT EXISTS (SELECT 1 FROM backoff AS b WHERE b.subject = a.subject AND b.process = a.process AND b.cause <> ''))
ORDER BY a.due_at, a.subject LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- name: InsertAgenda :exec
INSERT INTO agenda (process, due_at, subject, provider)
VALUES (sqlc.arg(process), sqlc.arg(due_at), sqlc.arg(subject), sqlc.arg(provider));

-- An entry is addressed by all of its key.
-- name: DeleteAgenda :exec
DELETE FROM agenda WHERE process = sqlc.arg(process) AND due_at = sqlc.arg(due_at) AND subject = sqlc.arg(subject);

-- name: CountAgenda :one
SELECT count(*) FROM agenda
WHERE process = sqlc.arg(process) AND due_at = sqlc.arg(due_at) AND subject = sqlc.arg(subject);

-- name: PutState :exec
INSERT INTO machine_state (machine, provider, state, reason, since, policy)
VALUES (sqlc.arg(machine), sqlc.arg(provider), sqlc.arg(state), sqlc.arg(reason), sqlc.arg(since), sqlc.arg(policy))
ON CONFLICT (machine) DO UPDATE
SET state = excluded.state, reason = excluded.reason, since = excluded.since, policy = excluded.policy;

-- name: DeleteState :exec
DELETE FROM machine_state WHERE machine = sqlc.arg(machine);

-- name: InsertStateCount :exec
INSERT INTO state_count (provider, state, n) VALUES (sqlc.arg(provider), sqlc.arg(state), sqlc.arg(n));

-- name: ListOlderPolicy :many
SELECT machine FROM machine_state WHERE policy < sqlc.arg(policy) ORDER BY policy, machine LIMIT CAST(sqlc.arg(max_rows) AS BIGINT);

-- name: CountStates :many
SELECT provider, state, CAST(sum(n) AS BIGINT) AS n FROM state_count GROUP BY provider, state;

-- Where CountStates does not say how many machines there are: by how many it is off.
-- name: ListWrongCounts :many
SELECT c.provider, c.state, CAST(sum(c.n) AS BIGINT) AS n FROM (
  SELECT s.provider, s.state, s.n FROM state_count AS s
  UNION ALL SELECT m.provider, m.state, -count(*) FROM machine_state AS m GROUP BY m.provider, m.state) AS c
GROUP BY c.provider, c.state HAVING sum(c.n) <> 0 ORDER BY c.provider, c.state;

-- name: CountStateCounts :many
SELECT provider, count(*) AS n FROM state_count GROUP BY provider ORDER BY provider;

-- name: TakeStateCounts :many
DELETE FROM state_count WHERE id IN (
  SELECT s.id FROM state_count s WHERE s.provider = sqlc.arg(provider) ORDER BY s.id LIMIT CAST(sqlc.arg(max_rows) AS BIGINT)
) RETURNING state, n;

-- name: GetBackoffs :many
SELECT * FROM backoff WHERE subject = sqlc.arg(subject) ORDER BY process;

-- name: PutBackoff :exec
INSERT INTO backoff (subject, process, not_before, lasts, cause, failures, unanswered_since, unanswered_at, answered, since)
VALUES (sqlc.arg(subject), sqlc.arg(process), sqlc.arg(not_before), sqlc.arg(lasts), sqlc.arg(cause), sqlc.arg(failures),
  sqlc.arg(unanswered_since), sqlc.arg(unanswered_at), sqlc.arg(answered), sqlc.arg(since))
ON CONFLICT (subject, process) DO UPDATE
SET not_before = excluded.not_before, lasts = excluded.lasts, cause = excluded.cause, failures = excluded.failures,
  unanswered_since = excluded.unanswered_since, unanswered_at = excluded.unanswered_at, answered = excluded.answered, since = excluded.since;

-- The machines in a state whose host has answered nobody since then, or for longer, and where
-- neither an agent nor an installed system ever ran, by provider.
-- name: CountUnanswered :many
SELECT s.provider, count(*) AS n FROM backoff AS b JOIN machine_state AS s ON s.machine = b.subject
WHERE b.unanswered_since > 0 AND b.unanswered_since <= sqlc.arg(since) AND b.process = sqlc.arg(process) AND s.state = sqlc.arg(state)
  AND NOT EXISTS (SELECT 1 FROM fact_agent_started AS a WHERE a.machine = s.machine)
  AND NOT EXISTS (SELECT 1 FROM installed AS i WHERE i.machine = s.machine)
GROUP BY s.provider;

-- How many machines of a provider in a state (that of those whose installed system boots) have a
-- disk that was written until then, and when the first of these disks was. Left out are machines
-- that were restarted or worked on since then, and systems to be probed, which do not call.
-- name: CountNotCalled :one
SELECT count(*) AS n, CAST(COALESCE(min(r.at), 0) AS BIGINT) AS oldest
FROM machine_state AS s JOIN install_report AS r ON r.machine = s.machine JOIN machine AS m ON m.id = s.machine
WHERE s.provider = sqlc.arg(provider) AND s.state = sqlc.arg(state) AND r.at <= sqlc.arg(since) AND m.due_probe = 0
  AND NOT EXISTS (SELECT 1 FROM maintenance AS n WHERE n.machine = s.machine AND n.until > sqlc.arg(since))
  AND NOT EXISTS (SELECT 1 FROM operation_attempt AS o WHERE o.machine = s.machine AND o.accepted_at > sqlc.arg(since));

-- How many machines of a provider in a state have a disk that was written for the newest request,
-- from which their system has not come up, and when the first of these disks was written.
-- name: CountNotUp :one
SELECT count(*) AS n, CAST(COALESCE(min(r.at), 0) AS BIGINT) AS oldest
FROM machine_state AS s JOIN install_report AS r ON r.machine = s.machine JOIN install_request AS q ON q.machine = s.machine
WHERE s.provider = sqlc.arg(provider) AND s.state = sqlc.arg(state) AND r.ok = 1 AND r.generation = q.generation
  AND NOT EXISTS (SELECT 1 FROM installed AS i WHERE i.machine = s.machine AND i.generation >= r.generation);

-- The machines whose installed system has come up since then.
-- name: CountUpSince :one
SELECT count(*) FROM installed WHERE at >= sqlc.arg(since);

-- name: DeleteBackoff :exec
DELETE FROM backoff WHERE subject = sqlc.arg(subject) AND process = sqlc.arg(process);

-- The wait is over, and the next one is short again. What is known of the host stays.
-- name: EndWait :exec
UPDATE backoff SET not_before = CASE WHEN not_before > sqlc.arg(now) THEN sqlc.arg(now) ELSE not_before END, lasts = 0
WHERE subject = sqlc.arg(subject) AND process = sqlc.arg(process) AND (not_before > sqlc.arg(now) OR lasts > 0);

-- What is due of a process, and since when the first entry is, without what is due at the providers
-- that without names, each as ⟨provider│⟩, and in the locations that locations names, each as
-- ⟨provider│location⟩. It counts among as many entries as the limit says.
-- name: CountDue :one
SELECT count(*) AS n, CAST(COALESCE(min(d.due_at), 0) AS BIGINT) AS since FROM (
  SELECT due_at, subject, provider FROM agenda WHERE process = sqlc.arg(process) AND due_at <= sqlc.arg(now)
  ORDER BY due_at, subject LIMIT CAST(sqlc.arg(max_rows) AS BIGINT)) AS d
WHERE replace(CAST(sqlc.arg(without) AS TEXT), '⟨' || d.provider || '│⟩', '') = CAST(sqlc.arg(without) AS TEXT)
  AND (CAST(sqlc.arg(locations) AS TEXT) = ''
    OR replace(CAST(sqlc.arg(locations) AS TEXT),
      '⟨' || d.provider || '│' || COALESCE((SELECT p.location FROM fact_provided AS p WHERE p.machine = d.subject), '') || '⟩',
      '') = CAST(sqlc.arg(locations) AS TEXT));

-- How many backoffs of a process are not over, counted as far as to the limit.
-- name: CountBackoffs :one
SELECT count(*) FROM (
  SELECT 1 FROM backoff WHERE process = sqlc.arg(process) AND not_before > sqlc.arg(now)
  LIMIT CAST(sqlc.arg(max_rows) AS BIGINT)) AS c;

-- How many machines in a state have a process that has failed so often in a row, counted as far as
-- to the limit. It looks at no more than ten times the limit of backoffs, one after the other.
-- name: CountFailing :one
SELECT count(*) FROM (
  SELECT b.subject FROM (
    SELECT subject, failures FROM backoff WHERE process = sqlc.arg(process)
    ORDER BY not_before LIMIT 10 * CAST(sqlc.arg(max_rows) AS BIGINT)) AS b
  WHERE b.failures >= CAST(sqlc.arg(least) AS BIGINT)
    AND (SELECT s.state FROM machine_state AS s WHERE s.machine = b.subject) = sqlc.arg(state)
  LIMIT CAST(sqlc.arg(max_rows) AS BIGINT)) AS c;

-- How many machines in a state show a host key that is not the known one, counted as far as to the
-- limit, and the first of them. How their work failed says so: a host may have failed in another
-- way since it showed that key. It looks at no more than ten times the limit of hosts that have
-- shown such a key, one after the other: no plan may begin with those that refuse us otherwise.
-- name: CountRefusedHostKeys :one
SELECT count(*) AS n, CAST(COALESCE(min(r.machine), '') AS TEXT) AS first FROM (
  SELECT h.machine FROM (
    SELECT machine FROM host_key WHERE refused <> ''
    ORDER BY machine LIMIT 10 * CAST(sqlc.arg(max_rows) AS BIGINT)) AS h
  WHERE (SELECT b.answered FROM backoff AS b WHERE b.subject = h.machine AND b.process = sqlc.arg(process)) > 2
    AND (SELECT s.state FROM machine_state AS s WHERE s.machine = h.machine) = sqlc.arg(state)
  ORDER BY h.machine LIMIT CAST(sqlc.arg(max_rows) AS BIGINT)) AS r;

-- How many machines in a state have a host that refuses us otherwise, as because it does not know
-- our SSH key, counted as far as to the limit, and the first of them. It looks at no more than ten
-- times the limit of hosts that refuse us.
-- name: CountHostsRefusing :one
SELECT count(*) AS n, CAST(COALESCE(min(r.subject), '') AS TEXT) AS first FROM (
  SELECT b.subject FROM (
    SELECT subject, answered FROM backoff WHERE process = sqlc.arg(process) AND answered > 1
    ORDER BY subject LIMIT 10 * CAST(sqlc.arg(max_rows) AS BIGINT)) AS b
  JOIN machine_state AS s ON s.machine = b.subject LEFT JOIN host_key AS k ON k.machine = b.subject
  WHERE s.state = sqlc.arg(state) AND NOT (b.answered > 2 AND COALESCE(k.refused, '') <> '')
  ORDER BY b.subject LIMIT CAST(sqlc.arg(max_rows) AS BIGINT)) AS r;

-- How many machines have an installed system that could not be asked, counted as far as to the
-- limit, when this failed first on the one where that was longest ago, and which that is. A machine
-- that nobody wants to ask does not count. It looks at no more than ten times the limit. The
-- process is named here so that its index is used.
-- name: CountUnasked :one
SELECT count(*) OVER () AS n, u.subject AS first, u.since FROM (
  SELECT b.subject, b.since FROM (
    SELECT f.subject, f.since FROM backoff AS f WHERE f.process = 'probe' AND f.since > 0 AND f.since <= sqlc.arg(before)
    ORDER BY f.since, f.subject LIMIT 10 * CAST(sqlc.arg(max_rows) AS BIGINT)) AS b
  JOIN machine AS m ON m.id = b.subject
  WHERE m.due_probe > 0
  ORDER BY b.since, b.subject LIMIT CAST(sqlc.arg(max_rows) AS BIGINT)) AS u
ORDER BY u.since, u.subject LIMIT 1;
