-- Reads everything that a claim needs at its beginning, in one statement. `moments` reads the due times again if the
-- claim changed more than its rows.

-- name: glance
SELECT (SELECT value FROM meta WHERE name = 'move'),
    (SELECT jobs FROM recent_claim WHERE worker = ? AND slot = ? AND claim_id = ?),
    EXISTS (SELECT 1 FROM rule),
    (SELECT due_at FROM job WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1), (SELECT min(at) FROM opening);

-- name: moments
SELECT (SELECT due_at FROM job WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1), (SELECT min(at) FROM opening);

-- name: set_recent_claim
INSERT OR REPLACE INTO recent_claim (worker, slot, claim_id, jobs, at) VALUES (?, ?, ?, ?, ?);

-- A page of a queue, with exactly the rows that the claim takes. The cursor (?4, ?5, ?6) is the last row that was read;
-- ?3 are the tasks that the worker has room for. claim.py adds the source of the rows, and conditions.

-- name: page
SELECT j.seq, j.flags, j.version, j.attempt, j.lost, j.queue_position, j.created_at, b.body
FROM {source} CROSS JOIN body b ON b.seq = j.seq
WHERE j.queue = ?1 AND j.queue_position IS NOT NULL {conditions}
ORDER BY j.rank DESC, j.queue_position, j.id LIMIT ?2;

-- When the queue's own limit is full, only jobs whose function has returned and jobs that kept their slot may pass.

-- name: exempt
(
    SELECT seq FROM job INDEXED BY job_line_ran WHERE queue = ?1 AND queue_position IS NOT NULL AND function_done = 1
    UNION SELECT job FROM slot WHERE key = 'queue:' || ?1
) e CROSS JOIN job j ON j.seq = e.seq;

-- name: lease
UPDATE job SET state = 2, version = version + 1, queue_position = NULL, due_at = ?1, worker = ?2, started_at = ?3,
    updated_at = ?3, flags = flags | ?4, room = substr(room, ?5)
WHERE {which};
