-- Settles an outcome for an ended job: changes its retention, or reopens it with all jobs that ended because of it.
CREATE FUNCTION settle_ended(job_row job, outcome job_outcome, t float8, OUT status text, OUT why text)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    has_steps constant boolean := coalesce(json_array_length(outcome.checkpoints) > 0, false);
    reopened text[];
    keys text[];
    wanted text;
    reopened_row job;
    holder_id text;
    dependent record;
BEGIN
    status := 'applied';
    IF outcome.state = job_row.state AND outcome.keep IS NOT NULL THEN
        IF has_steps THEN
            PERFORM store_checkpoints(job_row.id, outcome.checkpoints);
        END IF;
        -- an act raises the version: the next one must have read this one
        UPDATE ended SET expires_at = expires(job_row, job_row.state, job_row.ended_at, outcome.keep),
            checkpoints = checkpoints OR has_steps,
            version = version + CASE WHEN act_nonce(outcome.checkpoints) IS NULL THEN 0 ELSE 1 END
        WHERE ended.id = job_row.id;
        RETURN;
    END IF;
    IF outcome.state <> 1 THEN
        status := 'stale';
        why := json_build_array('moved', job_row.state, job_row.version);
        RETURN;
    END IF;
    reopened := jobs_to_reopen(job_row);
    SELECT array_agg(k) INTO keys FROM (
        SELECT coalesce(j.key, j.words ->> 'started') AS k FROM ended j WHERE j.id = ANY (reopened)) AS x
    WHERE k IS NOT NULL;
    IF keys IS NOT NULL THEN
        PERFORM lock_keys(keys);
        FOREACH wanted IN ARRAY reopened LOOP
            SELECT coalesce(j.key, j.words ->> 'started') AS k INTO dependent FROM ended j WHERE j.id = wanted;
            holder_id := CASE WHEN dependent.k IS NOT NULL THEN holder_of(dependent.k, t) END;
            IF holder_id <> wanted THEN
                RAISE EXCEPTION 'held' USING ERRCODE = 'TR001', DETAIL = json_build_array('held', dependent.k,
                    CASE WHEN coalesce(queue_of(holder_id) = ANY (outcome.reach), true) THEN holder_id ELSE '' END);
            END IF;
        END LOOP;
    END IF;
    FOREACH wanted IN ARRAY reopened LOOP
        FOR dependent IN
            SELECT down, ended.state FROM edge, ended WHERE up = wanted AND ended.id = wanted ORDER BY num
        LOOP
            PERFORM undo_count_down(wanted, dependent.down, dependent.state, t);
        END LOOP;
    END LOOP;
    IF has_steps THEN
        PERFORM forget_steps(job_row.id, outcome.checkpoints);
        PERFORM store_checkpoints(job_row.id, outcome.checkpoints);
        UPDATE ended SET checkpoints = true WHERE ended.id = job_row.id;
    END IF;
    FOREACH wanted IN ARRAY reopened LOOP
        SELECT * INTO reopened_row FROM ended WHERE ended.id = wanted;
        PERFORM reopen_row(reopened_row, t);
    END LOOP;
    SELECT * INTO job_row FROM job WHERE job.id = job_row.id;
    job_row.pending := 0;
    IF outcome.delay > 0 THEN
        PERFORM schedule_job(job_row, t + outcome.delay);
    ELSE
        PERFORM queue_job(job_row, t);
    END IF;
    FOREACH wanted IN ARRAY reopened[2:] LOOP
        PERFORM restart_wait(wanted, t);
    END LOOP;
END $$;

-- Locks and returns the job, each ancestor that failed because of its children, and all jobs that were doomed by the
-- endings of these.
CREATE FUNCTION jobs_to_reopen(job_row job) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    ids text[] := ARRAY[job_row.id];
    stack text[] := ARRAY[job_row.id];
    n int := 1;
    reopened text;
    parent_id text;
    dependent record;
BEGIN
    WHILE n > 0 LOOP
        reopened := stack[n];
        n := n - 1;
        SELECT parent INTO parent_id FROM ended WHERE id = reopened;
        FOR dependent IN
            SELECT j.id, e.num FROM edge e CROSS JOIN LATERAL (SELECT * FROM ended WHERE id = e.down OFFSET 0) AS j
            WHERE e.up = reopened AND j.reason = 'upstream' AND j.state = 5
            UNION ALL
            SELECT j.id, NULL FROM ended j WHERE j.id = parent_id AND j.state = 4 AND j.reason = 'children'
            ORDER BY num NULLS LAST
        LOOP
            IF NOT dependent.id = ANY (ids) THEN
                PERFORM 1 FROM ended WHERE id = dependent.id FOR UPDATE;
                CONTINUE WHEN NOT FOUND;
                ids := ids || dependent.id;
                n := n + 1;
                stack[n] := dependent.id;
            END IF;
        END LOOP;
    END LOOP;
    RETURN ids;
END $$;

-- Undoes the count of this ending for a job that still waits: it waits for the next ending.
CREATE FUNCTION undo_count_down(above text, below text, ended_as smallint, t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    job_row job;
BEGIN
    SELECT * INTO job_row FROM job WHERE id = below FOR NO KEY UPDATE;
    IF job_row.state IS DISTINCT FROM 0 THEN
        RETURN;
    END IF;
    UPDATE edge SET open = true
    WHERE up = above AND down = below AND NOT open AND NOT soft AND edge.version = job_row.version;
    IF FOUND THEN
        IF job_row.failures_allowed IS NULL OR ended_as = 3 THEN
            job_row.pending := job_row.pending + 1;
        ELSE
            job_row.failures_allowed := job_row.failures_allowed + 1;
        END IF;
        PERFORM update_job(job_row);
    END IF;
END $$;

-- Moves an ended row back, as a waiting job that has never run.
CREATE FUNCTION reopen_row(job_row job, t float8) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM ended WHERE id = job_row.id;
    PERFORM note_count(job_row.queue, job_row.task, kind_of(job_row.state, NULL, NULL), 'w');
    job_row.key := coalesce(job_row.key, job_row.words ->> 'started');
    IF job_row.key IS NOT NULL THEN
        UPDATE holder SET id = job_row.id WHERE key = job_row.key;
    END IF;
    job_row.function_done := coalesce(job_row.words ? 'function_done', false)
        OR coalesce(job_row.reason = 'children', false);
    job_row.deadline_at := t + deadline_of(job_row.words, job_row.created_at);
    job_row.due_at := CASE WHEN NOT job_row.function_done THEN job_row.deadline_at END;
    job_row.version := job_row.version + 1;
    job_row.state := 0;
    job_row.attempt := 0;
    job_row.lost := 0;
    job_row.reopenings := job_row.reopenings + 1;
    job_row.worker := NULL;
    job_row.result := NULL;
    job_row.value := NULL;
    job_row.error := NULL;
    job_row.reason := NULL;
    job_row.return_position := NULL;
    job_row.started_at := NULL;
    job_row.ended_at := NULL;
    job_row.expires_at := NULL;
    job_row.updated_at := t;
    INSERT INTO job SELECT (job_row).*;
END $$;

-- Makes a reopened job wait again: its upstreams that were reopened have to end again. An upstream without a row counts
-- as a success, because it was pruned and will not end again.
CREATE FUNCTION restart_wait(wanted text, t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    job_row job;
    required int;
    awaited bigint;
    gone text[];
BEGIN
    SELECT * INTO job_row FROM job WHERE id = wanted;
    awaited := (SELECT count(DISTINCT up) FROM unnest(job_row.after) AS a (up));
    IF job_row.function_done AND NOT coalesce(job_row.words ? 'function_done', false) THEN
        job_row.failures_allowed := NULL;
    ELSE
        required := (job_row.words ->> 'required')::int;
        job_row.failures_allowed := CASE
            WHEN job_row.words ? 'failures_allowed' THEN (job_row.words ->> 'failures_allowed')::int ELSE 0 END;
    END IF;
    job_row.pending := least(required, awaited);
    job_row.failures_allowed := allowed_failures(job_row.failures_allowed, required, awaited);
    PERFORM update_job(job_row);
    gone := lock_upstreams(job_row.after);
    DELETE FROM edge WHERE down = job_row.id AND up = ANY (job_row.after);
    PERFORM wait_for_upstreams(job_row, t, '{}', '{}', gone);
END $$;
