-- name: checkpoints
SELECT job, name, value FROM checkpoints WHERE job IN (SELECT value FROM json_each(?)) ORDER BY num;

-- name: spot
SELECT queue, rank, queue_position, id FROM job WHERE id = ? AND queue_position IS NOT NULL;

-- One row of JSON for each query: a thread that steps through many rows loses the GIL at each.

-- name: counts
SELECT json_group_array(json_array(queue, task, state, jobs, line, aside, first)) FROM (
    SELECT queue, task, state, count(*) AS jobs, count(queue_position) AS line,
        sum(blocked_on IS NOT NULL AND queue_position IS NULL) AS aside, min(queue_position), CASE WHEN queue_position IS NOT NULL THEN seq END AS first
    FROM job GROUP BY queue, task, state);

-- name: places
SELECT seq, queue_position FROM job WHERE seq IN (SELECT value FROM json_each(?));

-- name: used
SELECT json_group_array(json_array(key, taken, live)) FROM (
    SELECT key, sum(cost) AS taken, sum(live * cost) AS live FROM slot GROUP BY key);

-- name: aside
SELECT json_group_array(json_array(blocked_on, jobs)) FROM (
    SELECT blocked_on, count(*) AS jobs FROM job INDEXED BY job_aside
    WHERE blocked_on IS NOT NULL AND queue_position IS NULL GROUP BY blocked_on);

-- name: rated
SELECT key, tokens, at FROM bucket
UNION ALL
SELECT DISTINCT key, NULL, NULL FROM start WHERE key NOT IN (SELECT key FROM bucket);

-- The sum decides, exactly as in Python. The comparison before it, wider than any rounding error, limits the read to
-- the end of the index.

-- name: window
SELECT at, cost FROM start WHERE key = ?1 AND at > ?3 - ?2 - 0.001 AND at + ?2 > ?3 ORDER BY at;

-- name: workers
SELECT presence, seen FROM worker ORDER BY num;
