-- These statements end only running rows that no job waits for and that hold no key (flags & 3 = 0) and no slot of a
-- limit that blocks jobs (flags & 27 = 0): they touch no other row. Endings with one version and attempt share a
-- statement, as {id: result}: two thirds of the time of the general form; with equal results, as [id, ...]: half of it.
-- Rows leased here lately are found by number (recent_leases.py), consecutive ones by the first and last.

-- name: glance
SELECT (SELECT value FROM meta WHERE name = 'move'), EXISTS (SELECT 1 FROM slot);

-- name: succeed
UPDATE job SET state = 3, version = version + 1, attempt = :attempt, result = {result}, value = NULL, error = NULL,
    reason = NULL, pending = 0, due_at = NULL, updated_at = :now, ended_at = :now,
    flags = flags & ~16, expires_at = :now + max(coalesce(keep, :keep), :least), room = substr(room, {room})
{rows} AND job.version = :version AND job.state = 2 AND job.flags & :slow = 0;

-- name: end
UPDATE job SET state = e.value->>2, version = version + 1, attempt = e.value->>3, result = e.value->>4,
    value = e.value->>5, error = e.value->>6, reason = e.value->>7, note = coalesce(e.value->>8, note), pending = 0,
    due_at = NULL, updated_at = :now, ended_at = :now,
    flags = flags & ~16, expires_at = :now + max(coalesce(e.value->>9,
        CASE e.value->>2 WHEN 4 THEN coalesce(keep_failed, :keep_failed) ELSE coalesce(keep, :keep) END), :least)
FROM json_each(:rows) e
WHERE job.id = e.value->>0 AND job.version = e.value->>1 AND job.state = 2 AND job.flags & :slow = 0;

-- The rows that the statements above are about to end, by queue and task.

-- name: successes
SELECT queue, task, count(*) FROM job
WHERE {column} IN (SELECT value FROM json_each(:rows)) AND version = :version AND state = 2 AND flags & :slow = 0
GROUP BY queue, task;

-- name: ends
SELECT job.queue, job.task, e.value->>2, count(*) FROM json_each(:rows) e CROSS JOIN job ON job.id = e.value->>0
WHERE job.version = e.value->>1 AND job.state = 2 AND job.flags & :slow = 0 GROUP BY 1, 2, 3;

-- name: unapplied
SELECT e.key FROM json_each(?) e LEFT JOIN job ON job.id = e.value->>0
WHERE job.version IS NOT (e.value->>1) + 1;

-- name: renew_leases
UPDATE job SET due_at = :due, updated_at = :now FROM json_each(:rows) e
WHERE job.id = e.value->>0 AND job.version = e.value->>1 AND job.state = 2 AND job.worker IS NOT NULL
    AND job.flags & 1024 = 0;

-- name: store_worker
INSERT INTO worker (name, presence, seen) VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET presence = excluded.presence, seen = excluded.seen;

-- name: last_seen
SELECT coalesce((SELECT seen FROM worker WHERE name = ?), (SELECT max(seen) FROM worker), 0.0);

-- Repairs times that were written while the clock was ahead of ?1: starts count as now, and rows keep their remaining
-- time.

-- name: back_starts
INSERT INTO start (key, at, cost) SELECT key, ?1, sum(cost) FROM start WHERE at > ?1 GROUP BY key
ON CONFLICT (key, at) DO UPDATE SET cost = cost + excluded.cost;

-- name: back_starts_gone
DELETE FROM start WHERE at > ?1;

-- name: back_buckets
UPDATE bucket SET at = ?1, since = min(since, ?1) WHERE at > ?1;

-- name: back_openings
UPDATE opening SET at = ?1 WHERE at > ?1;

-- name: back_workers
UPDATE worker SET seen = ?1 WHERE seen > ?1;

-- name: back_rows
UPDATE job SET due_at = max(?1, due_at - (updated_at - ?1)), updated_at = ?1
WHERE due_at > ?1 AND updated_at > ?1 AND state IN (1, 2) AND queue_position IS NULL AND blocked_on IS NULL
    AND NOT (flags & 4096 AND started_at IS NULL);

-- name: drop_worker
DELETE FROM worker WHERE name = ?;
