-- name: append
INSERT INTO count_change (changes) VALUES (?);

-- All changes as one text: a list of lists.

-- name: changes
SELECT '[' || coalesce(group_concat(changes), '') || ']' FROM count_change;

-- Nearly always the row exists: an UPDATE takes a third of the time of an INSERT with ON CONFLICT.

-- name: change
UPDATE job_count SET jobs = jobs + ?1 WHERE queue = ?2 AND task = ?3 AND kind = ?4;

-- name: add
INSERT INTO job_count (jobs, queue, task, kind) VALUES (?, ?, ?, ?);

-- Without a condition: SQLite then drops whole pages, and the next number is 1.

-- name: clear_changes
DELETE FROM count_change;

-- name: drop_empty
DELETE FROM job_count WHERE jobs = 0;

-- name: ended
SELECT queue, task, state, count(*) FROM job WHERE seq IN (SELECT value FROM json_each(?)) GROUP BY queue, task, state;

-- The stored numbers, and all changes of them, in one state of the file. One row of JSON for each query: a thread that
-- steps through many rows loses the GIL at each.

-- name: kept
SELECT (SELECT json_group_array(json_array(queue, task, kind, jobs)) FROM job_count WHERE jobs <> 0),
    (SELECT '[' || coalesce(group_concat(changes), '') || ']' FROM count_change);

-- The kinds that a bound counts: queued, scheduled and blocked.

-- name: kept_waiting
SELECT (SELECT coalesce(sum(jobs), 0) FROM job_count WHERE queue = ? AND substr(kind, 1, 1) IN ('q', 's', 'b')),
    (SELECT '[' || coalesce(group_concat(changes), '') || ']' FROM count_change);

-- name: kept_ended
SELECT (SELECT coalesce(sum(jobs), 0) FROM job_count WHERE kind IN ('d', 'f', 'c')),
    (SELECT '[' || coalesce(group_concat(changes), '') || ']' FROM count_change);

-- name: counted
SELECT json_group_array(json_array(queue, task, kind, jobs)) FROM (
    SELECT queue, task, CASE state WHEN 1 THEN CASE
            WHEN queue_position IS NOT NULL THEN 'q' WHEN blocked_on IS NOT NULL THEN 'b' || blocked_on ELSE 's' END
        ELSE substr('wsrdfc', state + 1, 1) END AS kind, count(*) AS jobs
    FROM job GROUP BY 1, 2, 3);

-- The first position of each queue. A skip scan finds the heads of its ranks. They are not returned as JSON, which
-- would round them.

-- name: heads
WITH RECURSIVE head (seq, queue, rank, position) AS (
    SELECT seq, queue, rank, queue_position FROM job WHERE seq = (
        SELECT seq FROM job INDEXED BY job_line WHERE queue_position IS NOT NULL
        ORDER BY queue, rank DESC, queue_position, id LIMIT 1)
    UNION ALL
    SELECT j.seq, j.queue, j.rank, j.queue_position FROM head h CROSS JOIN job j ON j.seq = coalesce(
        (SELECT seq FROM job INDEXED BY job_line
         WHERE queue_position IS NOT NULL AND queue = h.queue AND rank < h.rank
         ORDER BY queue, rank DESC, queue_position, id LIMIT 1),
        (SELECT seq FROM job INDEXED BY job_line WHERE queue_position IS NOT NULL AND queue > h.queue
         ORDER BY queue, rank DESC, queue_position, id LIMIT 1))
)
SELECT queue, min(position) FROM head GROUP BY queue;

-- Read the number of repairs. A repair computed from a state older than the last repair must be computed again.

-- name: repairs
SELECT coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'count_repairs'), 0);

-- name: repaired
INSERT INTO meta (name, value) VALUES ('count_repairs', 1)
ON CONFLICT (name) DO UPDATE SET value = CAST(value AS INTEGER) + 1;
