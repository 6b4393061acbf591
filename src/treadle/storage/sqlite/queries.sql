-- name: queue_position
SELECT queue, rank, queue_position, id FROM job WHERE id = ? AND queue_position IS NOT NULL;

-- One row of JSON for each query: a thread that steps through many rows loses the GIL at each.

-- name: used
SELECT json_group_array(json_array(key, taken, live)) FROM (
    SELECT key, sum(cost) AS taken, sum(live * cost) AS live FROM slot GROUP BY key);

-- name: rated
SELECT key, tokens, at FROM bucket
UNION ALL
SELECT DISTINCT key, NULL, NULL FROM start WHERE key NOT IN (SELECT key FROM bucket);

-- name: openings
SELECT key, at FROM opening;

-- The sum `at + ?2` decides, exactly as in Python. The comparison before it, wider than any rounding error, limits the
-- read to the end of the index.

-- name: window
SELECT at, cost FROM start WHERE key = ?1 AND at > ?3 - ?2 - 0.001 AND at + ?2 > ?3 ORDER BY at;

-- name: workers
SELECT presence, seen FROM worker ORDER BY num;
