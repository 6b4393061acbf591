-- The per-row path: what the state machine reads and writes.

-- name: put
UPDATE job SET flags = ?, state = ?, version = ?, pending = ?, failures_allowed = ?, function_done = ?,
    queue_position = ?, return_position = ?, due_at = ?, deadline_at = ?, attempt = ?, lost = ?, worker = ?,
    blocked_on = ?, result = ?, value = ?, error = ?, reason = ?, note = ?, reopenings = ?, started_at = ?,
    updated_at = ?, ended_at = ?, expires_at = ?, after = ?
WHERE seq = ?;

-- name: remembered
SELECT name, value FROM checkpoints WHERE job = ? AND name IN (SELECT value FROM json_each(?));

-- name: remember
INSERT INTO checkpoints (job, name, value) VALUES (?, ?, ?)
ON CONFLICT (job, name) DO UPDATE SET value = excluded.value;

-- name: forget_steps
DELETE FROM checkpoints WHERE job = ?1 AND substr(name, 1, length(?2)) <> ?2;

-- name: states
SELECT id, state FROM job WHERE id IN (SELECT value FROM json_each(?));

-- name: holders
SELECT key, id FROM job WHERE key IN (SELECT value FROM json_each(?)) AND key IS NOT NULL;

-- name: any_queued
SELECT 1 FROM job INDEXED BY job_line WHERE queue = ? AND queue_position IS NOT NULL LIMIT 1;

-- name: queues_of
SELECT j.queue FROM json_each(?) e CROSS JOIN job j ON j.id = e.value ORDER BY e.key;

-- name: lane_last
SELECT max(queue_position) FROM job
WHERE queue = ? AND rank = ? AND lane = ? AND lane IS NOT NULL AND queue_position IS NOT NULL;

-- A queue's jobs in the order of shedding, read row by row as far as needed.

-- name: last_queued
SELECT id, rank, started_at IS NULL AND function_done = 0 AND substr(task, 1, 8) <> 'treadle.'
FROM job INDEXED BY job_line
WHERE queue = ? AND queue_position IS NOT NULL ORDER BY rank, queue_position DESC, id DESC;

-- name: first_queued
SELECT queue_position, id, rank, started_at IS NULL AND function_done = 0 AND substr(task, 1, 8) <> 'treadle.'
FROM job INDEXED BY job_line
WHERE queue = ? AND rank = ? AND queue_position IS NOT NULL ORDER BY queue_position, id;

-- name: next_rank
SELECT rank FROM job INDEXED BY job_line
WHERE queue = ? AND queue_position IS NOT NULL AND rank < ? ORDER BY rank DESC LIMIT 1;

-- name: queue_head
SELECT queue_position FROM job INDEXED BY job_line
WHERE queue = ? AND rank = ? AND queue_position IS NOT NULL ORDER BY queue_position LIMIT 1;

-- name: take_key
UPDATE job SET key = ? WHERE id = ?;

-- name: drop_key
UPDATE job SET key = NULL WHERE id = ? AND key IS NOT NULL;

-- name: free_key
UPDATE job SET key = NULL WHERE key = ?1 AND key IS NOT NULL AND id IS NOT ?2;

-- name: edge
INSERT INTO edge (up, down, version, open, soft, named) VALUES (?, ?, ?, 1, ?, ?)
ON CONFLICT (up, down)
DO UPDATE SET version = excluded.version, open = 1, soft = excluded.soft, named = excluded.named;

-- name: mark_down
UPDATE job SET flags = flags | 1 WHERE id IN (SELECT value FROM json_each(?)) AND flags & 1 = 0;

-- name: downs
SELECT down, version, open, soft FROM edge WHERE up = ? ORDER BY num;

-- name: an_edge
SELECT down, version, open, soft FROM edge WHERE up = ? AND down = ?;

-- name: set_edge
UPDATE edge SET open = ?3 WHERE up = ?1 AND down = ?2;

-- name: set_behind
INSERT OR REPLACE INTO behind (job, first) VALUES (?, ?);

-- name: behind
SELECT first FROM behind WHERE job = ?;

-- name: drop_edge
DELETE FROM edge WHERE up = ? AND down = ?;

-- name: unname_edges
UPDATE edge SET named = 0 WHERE down = ?;

-- name: rules
SELECT rule FROM rule;

-- name: used_live
SELECT coalesce(sum(cost), 0) FROM slot WHERE key = ? AND live = 1;

-- name: used
SELECT coalesce(sum(cost), 0) FROM slot WHERE key = ?;

-- name: set_slot
INSERT OR REPLACE INTO slot (key, job, live, cost) VALUES (?, ?, ?, ?);

-- name: drop_slot
DELETE FROM slot WHERE key = ? AND job = ?;

-- name: starts
SELECT at, cost FROM start WHERE key = ? ORDER BY at;

-- The sum decides, exactly as in Python. The comparison before it, wider than any rounding error, limits the read to
-- the head of the index.

-- name: forget_starts
DELETE FROM start WHERE key = ?1 AND at < ?3 - ?2 + 0.001 AND at + ?2 <= ?3;

-- name: set_start
INSERT OR REPLACE INTO start (key, at, cost) VALUES (?, ?, ?);

-- name: bucket
SELECT tokens, at, since FROM bucket WHERE key = ?;

-- name: set_bucket
INSERT OR REPLACE INTO bucket (key, tokens, at, since) VALUES (?, ?, ?, ?);

-- name: settle_start
UPDATE start SET cost = max(0, cost - ?3) + ?4 WHERE key = ?1 AND at = ?2;

-- name: blocked
SELECT b.body, j.return_position FROM job j CROSS JOIN body b ON b.seq = j.seq
WHERE j.blocked_on = ?1 AND j.blocked_on IS NOT NULL AND j.queue = ?2 AND j.queue_position IS NULL
    AND (?3 = 0 OR NOT EXISTS (SELECT 1 FROM slot s WHERE s.key = ?1 AND s.job = j.seq))
ORDER BY j.rank DESC, j.return_position, j.id;

-- name: blocked_kept
SELECT b.body, j.return_position FROM slot s CROSS JOIN job j ON j.seq = s.job CROSS JOIN body b ON b.seq = j.seq
WHERE s.key = ?1 AND j.blocked_on = ?1 AND j.queue = ?2 AND j.queue_position IS NULL
ORDER BY j.rank DESC, j.return_position, j.id;

-- name: next_blocked_queue
SELECT queue FROM job INDEXED BY job_aside
WHERE blocked_on = ?1 AND blocked_on IS NOT NULL AND queue_position IS NULL AND queue > ?2 ORDER BY queue LIMIT 1;

-- name: unblocked_jobs
SELECT b.body, j.queue_position, EXISTS (SELECT 1 FROM slot s WHERE s.key = ?1 AND s.job = j.seq)
FROM job j CROSS JOIN body b ON b.seq = j.seq
WHERE j.blocked_on = ?1 AND j.blocked_on IS NOT NULL AND j.queue = ?2 AND j.queue_position IS NOT NULL;

-- name: blocked_keys
SELECT DISTINCT blocked_on FROM job INDEXED BY job_aside WHERE blocked_on IS NOT NULL AND queue_position IS NULL;

-- name: set_opening
INSERT OR REPLACE INTO opening (key, at) VALUES (?, ?);

-- name: drop_opening
DELETE FROM opening WHERE key = ?;

-- name: mark_and_bounds
SELECT (SELECT value FROM meta WHERE name = 'move'), (SELECT value FROM meta WHERE name = 'bounds');

-- name: mark
SELECT value FROM meta WHERE name = 'move';

-- Returns which of these ids (a JSON array) wait for a job (?1), directly or through others, or are that job. The
-- version says which wait of the job the edge belongs to.

-- name: waiting_for
WITH RECURSIVE waits (id) AS (
    SELECT ?1
    UNION SELECT job.id FROM waits CROSS JOIN edge ON edge.up = waits.id AND edge.open = 1
    CROSS JOIN job ON job.id = edge.down AND job.version = edge.version AND job.state = 0
)
SELECT id FROM waits WHERE id IN (SELECT value FROM json_each(?2));
