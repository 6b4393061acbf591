-- A skip scan finds the heads of each queue, one per rank. Each count ends at the bound ?1; the kinds are counted from
-- the indexes that have only such rows. ?2 is now.

-- name: queues
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
),
line (queue, oldest) AS MATERIALIZED (SELECT queue, min(position) FROM head GROUP BY queue),
counted (kind, queue, jobs, age) AS (
    SELECT 'queued', l.queue,
        (SELECT count(*) FROM (
            SELECT 1 FROM job INDEXED BY job_line WHERE queue_position IS NOT NULL AND queue = l.queue LIMIT ?1)),
        max(0.0, ?2 - l.oldest)
    FROM line l
    UNION ALL
    SELECT 'running', queue, count(*), NULL FROM (
        SELECT queue FROM job INDEXED BY job_running WHERE state = 2 LIMIT ?1) GROUP BY queue
    UNION ALL
    SELECT 'scheduled', queue, count(*), NULL FROM (
        SELECT queue FROM job INDEXED BY job_held
        WHERE state < 2 AND queue_position IS NULL AND state = 1 AND blocked_on IS NULL LIMIT ?1) GROUP BY queue
    UNION ALL
    SELECT 'blocked', queue, count(*), NULL FROM (
        SELECT queue FROM job INDEXED BY job_held
        WHERE state < 2 AND queue_position IS NULL AND state = 1 AND blocked_on IS NOT NULL LIMIT ?1) GROUP BY queue
    UNION ALL
    SELECT 'waiting', queue, count(*), NULL FROM (
        SELECT queue FROM job INDEXED BY job_held WHERE state < 2 AND queue_position IS NULL AND state = 0 LIMIT ?1)
        GROUP BY queue
    UNION ALL
    SELECT 'failed', queue, count(*), NULL FROM (
        SELECT queue FROM job INDEXED BY job_bad WHERE state > 3 AND state = 4 LIMIT ?1) GROUP BY queue
)
SELECT json_group_array(json_array(kind, queue, jobs, age)) FROM counted;

-- The jobs that each limit blocks, by a skip scan, each count up to the bound ?1.

-- name: blocked
WITH RECURSIVE key (name) AS (
    SELECT (SELECT min(blocked_on) FROM job INDEXED BY job_held WHERE state < 2 AND queue_position IS NULL AND state = 1)
    UNION ALL
    SELECT (SELECT min(blocked_on) FROM job INDEXED BY job_held
            WHERE state < 2 AND queue_position IS NULL AND state = 1 AND blocked_on > k.name)
    FROM key k WHERE k.name IS NOT NULL
)
SELECT json_group_array(json_array(name, (
    SELECT count(*) FROM (SELECT 1 FROM job INDEXED BY job_held
        WHERE state < 2 AND queue_position IS NULL AND state = 1 AND blocked_on = k.name LIMIT ?1))))
FROM key k WHERE name IS NOT NULL;

