-- Advance due rows: queue scheduled jobs and jobs whose lease expired, expire deadlines and waits, unblock jobs that a
-- rate now admits. Two statements handle the common rows; the others among the first `most` go one by one, by due time.
-- If jobs with lanes are among them, all go one by one, because their order in the lane matters. Rows that another
-- transaction has locked are left for a later call.
CREATE FUNCTION advance_due(t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    due_row record;
    limited text;
    queues text[];
    most int := ${DUE_STEP};
    joined_rows int := 0;
    returned_rows int := 0;
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM (SELECT lane FROM job WHERE due_at <= t AND state <> 2 ORDER BY due_at LIMIT most) AS due
        WHERE lane IS NOT NULL)
    THEN
        WITH joined AS (
            UPDATE job SET queue_position = due_at, return_position = due_at,
                due_at = CASE WHEN NOT function_done THEN deadline_at END
            WHERE ctid = ANY (ARRAY(
                    SELECT ctid FROM job WHERE due_at <= t AND state <> 2 ORDER BY due_at LIMIT most
                    FOR NO KEY UPDATE SKIP LOCKED))
                AND state = 1 AND queue_position IS NULL AND blocked_on IS NULL AND return_position IS NULL
                AND NOT coalesce(words ? 'aging', false) AND (function_done OR deadline_at IS NULL OR deadline_at > t)
            RETURNING queue, task
        ), counted AS (
            INSERT INTO count_change SELECT queue, task, 's', 'q', count(*) FROM joined GROUP BY queue, task
        ) SELECT array_agg(DISTINCT queue), count(*) INTO queues, joined_rows FROM joined;
        PERFORM publish('queue:' || q) FROM unnest(queues) AS q;
        WITH returned AS (
            UPDATE job SET queue_position = return_position, state = 1, lost = lost + 1, updated_at = t,
                due_at = CASE WHEN NOT function_done THEN deadline_at END, reason = lost_by(worker)
            WHERE ctid = ANY (ARRAY(
                    SELECT ctid FROM job WHERE due_at < t AND state = 2 ORDER BY due_at LIMIT most
                    FOR NO KEY UPDATE SKIP LOCKED))
                AND limits IS NULL AND return_position IS NOT NULL
                    AND (function_done OR deadline_at IS NULL OR deadline_at > t)
            RETURNING queue, task
        ), counted AS (
            INSERT INTO count_change SELECT queue, task, 'r', 'q', count(*) FROM returned GROUP BY queue, task
        ) SELECT array_agg(DISTINCT queue), count(*) INTO queues, returned_rows FROM returned;
        PERFORM publish('queue:' || q) FROM unnest(queues) AS q;
    END IF;
    FOR due_row IN
        SELECT * FROM (
            (SELECT id, due_at FROM job WHERE due_at <= t AND state <> 2 ORDER BY due_at LIMIT most - joined_rows)
            UNION ALL
            (SELECT id, due_at FROM job WHERE due_at < t AND state = 2 ORDER BY due_at LIMIT most - returned_rows)
        ) AS due ORDER BY due_at, id
    LOOP
        PERFORM advance_row(due_row.id, due_row.due_at, t);
    END LOOP;
    PERFORM unblock_freed_limits('{}', t);
    -- gates that other transactions hold are left to them, or to the next call
    FOREACH limited IN ARRAY try_gates(ARRAY(SELECT key FROM gate WHERE opens <= t LIMIT most)) LOOP
        PERFORM unblock_limit(limited, t);
    END LOOP;
    PERFORM recheck_limits(t);
END $$;

-- The reason of a job that is queued again after its lease expired: the worker's name, without the number of the claim
-- id.
CREATE FUNCTION lost_by(claim_id text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT 'lost by ' || coalesce(nullif(regexp_replace(claim_id, '#[^#]*$', ''), ''), claim_id)
$$;

-- Advance one due row. If another open transaction has locked a row that this needs, the row stays due.
CREATE FUNCTION advance_row(wanted text, due float8, t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    job_row job;
BEGIN
    SELECT * INTO job_row FROM job WHERE id = wanted AND due_at = due FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF job_row.deadline_at <= t AND NOT job_row.function_done THEN
        PERFORM lock_with_dependents(ARRAY[job_row.id], ARRAY[job_row.id], false);
        PERFORM end_job(job_row, 4, 'expired', 'its deadline passed', NULL, t);
        PERFORM count_endings(ARRAY[job_row.id], ARRAY[4], t);
    ELSIF job_row.state = 2 THEN
        job_row.lost := job_row.lost + 1;
        job_row.reason := lost_by(job_row.worker);
        job_row.updated_at := t;
        PERFORM queue_job(job_row, t);
        PERFORM note_freed(job_row.limits);
    ELSIF job_row.state = 1 THEN
        PERFORM queue_job(job_row, due);
    ELSIF job_row.started_at IS NULL AND NOT job_row.function_done THEN
        PERFORM lock_with_dependents(ARRAY[job_row.id], ARRAY[job_row.id], false);
        PERFORM end_job(job_row, 4, 'expired', 'what it waited for did not come in time', NULL, t);
        PERFORM count_endings(ARRAY[job_row.id], ARRAY[4], t);
    ELSIF job_row.task <> '' THEN
        PERFORM queue_job(job_row, t);
    ELSE    -- a promise that was claimed: no call runs it, so only its deadline is due
        job_row.due_at := CASE WHEN NOT job_row.function_done THEN job_row.deadline_at END;
        PERFORM update_job(job_row);
    END IF;
EXCEPTION WHEN lock_not_available THEN
    PERFORM set_config('lock_timeout', '10ms', true);   -- together the waits may take half a second
END $$;
