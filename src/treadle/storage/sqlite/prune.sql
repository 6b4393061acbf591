-- An ended row may be deleted when no unfinished job names it in `after` and every job of its workflow has ended: the
-- root, and all jobs with that root. A row without a task that was settled with `keep=0` (60 s) is not kept by its
-- root.

-- One row of JSON: a thread that steps through many rows loses the GIL at each.

-- name: old
SELECT json_group_array(json_array(seq, id, flags)) FROM (
    SELECT j.seq, j.id, j.flags FROM job j WHERE j.expires_at <= ?1 AND j.expires_at IS NOT NULL
    AND NOT (j.flags & 1 AND EXISTS (
        SELECT 1 FROM edge e JOIN job d ON d.id = e.down WHERE e.up = j.id AND e.named AND d.state < 3))
    AND NOT EXISTS (SELECT 1 FROM job u WHERE u.root = coalesce(j.root, j.id) AND u.root IS NOT NULL AND u.state < 3
        AND (j.root IS NULL OR j.task <> '' OR j.expires_at > j.ended_at + 60))
    AND NOT EXISTS (SELECT 1 FROM job u WHERE u.id = j.root AND u.root IS NULL AND u.state < 3
        AND (j.task <> '' OR j.expires_at > j.ended_at + 60))
ORDER BY j.expires_at, j.id LIMIT ?2);

-- A job that was cancelled because of an upstream, or failed because of a child, may be reopened, and then waits again
-- for all jobs that it names.
-- name: keep_longer
UPDATE job SET expires_at = x.until FROM (
    SELECT j.seq AS seq, max(d.expires_at) AS until FROM job j
    JOIN edge e ON e.up = j.id AND e.named JOIN job d ON d.id = e.down
    WHERE j.seq IN (SELECT value FROM json_each(?1)) AND d.expires_at > ?2
        AND (d.state = 5 AND d.reason = 'upstream' OR d.state = 4 AND d.reason = 'children')
    GROUP BY j.seq
) AS x WHERE job.seq = x.seq RETURNING job.seq;

-- name: keep_top
INSERT OR REPLACE INTO meta (name, value) VALUES ('top', ?);

-- name: labelled
SELECT seq, body FROM body WHERE seq IN (SELECT value FROM json_each(?));

-- name: drop_label
DELETE FROM label WHERE label = ? AND job = ?;

-- name: drop_checkpoints
DELETE FROM checkpoints WHERE job IN (SELECT value FROM json_each(?));

-- name: drop_edges
DELETE FROM edge WHERE down IN (SELECT value FROM json_each(?));

-- name: drop_behind
DELETE FROM behind WHERE job IN (SELECT value FROM json_each(?));

-- name: drop_body
DELETE FROM body WHERE seq IN (SELECT value FROM json_each(?));

-- name: drop_job
DELETE FROM job WHERE seq IN (SELECT value FROM json_each(?));

-- name: drop_recent_claims
DELETE FROM recent_claim WHERE at < ?;

-- name: drop_workers
DELETE FROM worker WHERE seen < ?;

-- The stored state of some rates: the last start, the bucket.
-- name: rates
SELECT json_group_array(json_array(key, last, tokens, at)) FROM (
    SELECT k.key, (SELECT max(s.at) FROM start s WHERE s.key = k.key) AS last, b.tokens, b.at FROM (
        SELECT key FROM (SELECT DISTINCT key FROM start WHERE key > ?1 ORDER BY key LIMIT ?2)
        UNION SELECT key FROM (SELECT key FROM bucket WHERE key > ?1 ORDER BY key LIMIT ?2) ORDER BY key LIMIT ?2
    ) AS k LEFT JOIN bucket b ON b.key = k.key ORDER BY k.key
);

-- name: drop_starts
DELETE FROM start WHERE key IN (SELECT value FROM json_each(?));

-- name: drop_buckets
DELETE FROM bucket WHERE key IN (SELECT value FROM json_each(?));
