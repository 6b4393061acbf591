-- A running row is due only after its lease has expired, so a row whose lease ends exactly now is left alone.

-- name: due
SELECT seq, id, flags, state, queue_position, blocked_on, return_position, deadline_at, function_done, queue, task
FROM job
WHERE due_at <= ?1 AND due_at IS NOT NULL AND NOT (state = 2 AND due_at >= ?1) ORDER BY due_at, id LIMIT ?2;

-- name: join_scheduled
UPDATE job SET queue_position = due_at, return_position = due_at,
    due_at = CASE WHEN function_done THEN NULL ELSE deadline_at END
WHERE seq IN (SELECT value FROM json_each(?));

-- The reason names the worker: its claim id up to the last '#', as in row_rules.lost. Flag 512 makes a claim read
-- the reason.

-- name: return_lost
UPDATE job SET state = 1, queue_position = return_position, lost = lost + 1, updated_at = ?1, flags = flags | 512,
    reason = 'lost by ' || coalesce(nullif(substr(rtrim(worker, replace(worker, '#', '')), 1,
        length(rtrim(worker, replace(worker, '#', ''))) - 1), ''), worker),
    due_at = CASE WHEN function_done THEN NULL ELSE deadline_at END
WHERE seq IN (SELECT value FROM json_each(?2));

-- name: openings
SELECT key FROM opening WHERE at <= ?;
